package main

import (
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// groupBytes returns the disk usage of the files of all groups below a folder, as du counts it.
func groupBytes(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.Contains(name, "/groups/") {
			return nil //nolint:nilerr // a file that was deleted in the meantime takes up no space
		}
		if info, err := e.Info(); err == nil {
			bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	}))
	return bytes
}

// Records of all sizes are overwritten repeatedly, and each write has a request id. All flags have their defaults,
// except that segments are small. The files shrink to at most 2.2 times the live data, plus one segment for each
// group. If an early write is repeated, even after a restart, the store still recognises it. `make soak-proc` runs
// this test for two minutes.
func TestOverwritingKeepsFilesWithinABound(t *testing.T) {
	t.Parallel()
	const segment, groups = 4 << 20, 2
	rounds, until := 12, time.Time{}
	if soaktest.Long() {
		until = time.Now().Add(2 * time.Minute)
	}
	dir := t.TempDir()
	flags := []string{"--shards", "1", "--groups", "2", "--segment-bytes", "4MiB"}
	p := startDev(t, dir, flags...)
	cc := dial(t, p.server)
	records := recordv1.NewRecordServiceClient(cc)
	sizes := []int{10, 100, 1000, 10_000, 100_000, 1 << 20}
	puts := map[int][]*recordv1.PutRequest{} // some of the requests of each round
	answers := map[*recordv1.PutRequest]*recordv1.PutResponse{}
	live, written := int64(0), int64(0)
	for round := 0; round < rounds || time.Now().Before(until); round++ {
		live = 0
		for i := range 60 {
			request, size := uuid.New(), sizes[i%len(sizes)]
			put := &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: int64(i)}, Data: pattern(uint64(round*1000+i), size),
				RequestId: request[:]}
			answer, err := records.Put(t.Context(), put)
			must(t, err)
			if round < 2 {
				puts[round] = append(puts[round], put)
				answers[put] = answer
			}
			live, written = live+int64(size)+90, written+int64(size)
		}
	}
	most := 22*live/10 + groups*segment
	for end := time.Now().Add(2 * time.Minute); groupBytes(t, dir) > most; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are on disk of %d written, %d live: want at most %d", groupBytes(t, dir), written, live, most)
		}
	}
	t.Logf("%d bytes on disk of %d written, %d live, at most %d", groupBytes(t, dir), written, live, most)
	repeat := func(when string) {
		t.Helper()
		for _, put := range puts[0] {
			again, err := records.Put(t.Context(), put)
			if err != nil || !again.GetRepeated() || again.GetVersion() != answers[put].GetVersion() ||
				again.GetCommitTimeUnixNs() != answers[put].GetCommitTimeUnixNs() {
				t.Fatalf("%s, put %d: %v, %v; the first answer was %v", when, put.GetKey().GetId(), again, err, answers[put])
			}
		}
		for _, put := range puts[1] {
			other := &recordv1.PutRequest{Key: put.GetKey(), Data: []byte("other data"), RequestId: put.GetRequestId()}
			if _, err := records.Put(t.Context(), other); status.Code(err) != codes.InvalidArgument {
				t.Fatalf("%s, put %d: another write under its request id: %v", when, put.GetKey().GetId(), err)
			}
		}
	}
	repeat("after the compactions")
	p.kill()
	p = launch(t, dir, p.server, loopback.Free(t), flags...)
	p.waitReady(t)
	reconnect(t, cc)
	repeat("after a kill and a start")
	if code := p.stop(t); code != 0 {
		t.Errorf("stopping: exit code %d: %s", code, p.stderr)
	}
	sheaf(t, nil, "verify", dir).Want(t, 0)
}
