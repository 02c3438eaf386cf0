package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// says is an output that tells when a text has been written to it.
type says struct {
	text string
	said chan struct{}

	mu  sync.Mutex
	all bytes.Buffer
}

// Write implements io.Writer.
func (s *says) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := strings.Contains(s.all.String(), s.text)
	s.all.Write(p)
	if !before && strings.Contains(s.all.String(), s.text) {
		close(s.said)
	}
	return len(p), nil
}

func (s *says) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.String()
}

// contents returns the content of each file below a folder.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		all[path] = string(content)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// The command serves the records of an archive on this machine until it is stopped. It writes nothing into the archive,
// and leaves no folder behind. The test uses real sockets because it runs the whole command.
func TestDevServesAnArchive(t *testing.T) {
	url := archiveOfTests(t)
	folder := strings.TrimPrefix(url, "file://")
	before := contents(t, folder)
	t.Setenv("TMPDIR", t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, ended := &says{text: "serving on", said: make(chan struct{})}, make(chan int, 1)
	go func() {
		ended <- run(ctx, out, out, []string{"dev", url, "--listen", "127.0.0.1:0", "--http", ""})
	}()
	select {
	case <-out.said:
	case code := <-ended:
		t.Fatalf("it ended with %d: %s", code, out)
	}
	address := regexp.MustCompile(`serving on (\S+),`).FindStringSubmatch(out.String())[1]
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	records, found := recordv1.NewRecordServiceClient(conn), 0
	for _, g := range archivetest.Sample(t, archivetest.NewMemory(), object.Key{}, 50).Groups {
		if g.Gone {
			continue
		}
		for id, want := range g.State(g.Through()) {
			if data, err := download(ctx, records, g.Name, id); err != nil || data != string(want.Data) {
				t.Errorf("group %s, record %d: %q, %v, want %s", g.Name, id, data, err, want)
			}
			found++
		}
	}
	if found == 0 {
		t.Error("the archive has no record")
	}
	key := &recordv1.RecordKey{Group: "alpha", Id: 1 << 40}
	if _, err := records.Put(ctx, &recordv1.PutRequest{Key: key}); err != nil {
		t.Errorf("a put: %v", err)
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("%d, %s", code, out)
	}
	after := contents(t, folder)
	for name, content := range after {
		if before[name] != content {
			t.Errorf("%s was written", name)
		}
	}
	if left := contents(t, os.Getenv("TMPDIR")); len(after) != len(before) || len(left) > 0 {
		t.Errorf("%d objects before, %d after; %d files are left", len(before), len(after), len(left))
	}
}

// download returns the data of a record of any size.
func download(ctx context.Context, records recordv1.RecordServiceClient, group string, id int64) (string, error) {
	stream, err := records.Download(ctx, &recordv1.DownloadRequest{Key: &recordv1.RecordKey{Group: group, Id: id}})
	var data []byte
	for err == nil {
		var part *recordv1.DownloadResponse
		if part, err = stream.Recv(); err == nil {
			data = append(data, part.GetChunk().GetData()...)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return string(data), err
}

// What cannot be served is refused before anything is made.
func TestDevRefusesWhatItCannotServe(t *testing.T) {
	url := archiveOfTests(t)
	used := t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "letter"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	early := archivetest.Begin.Format("2006-01-02T15:04:05Z07:00")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--at", "tomorrow"}, 2, "is not a point in time"},
		{[]string{"--at", "index:3"}, 2, "must be a time"},
		{[]string{"--at", "point:none"}, 3, "has no point"},
		{[]string{"--at", "2199-01-01T00:00:00Z"}, 1, "is not archived yet"},
		{[]string{"--at", early}, 1, "the archive cannot restore"},
		{[]string{"--group", "gamma2"}, 2, "the archive has no group gamma2"},
		{[]string{"--dir", used}, 1, "holds something else"},
	} {
		code, out, errs := runArchive(t, append([]string{"dev", url, "--listen", "127.0.0.1:0", "--http", ""}, c.args...)...)
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%q: %d, %q, %q; must say %q", c.args, code, out, errs, c.says)
		}
	}
}
