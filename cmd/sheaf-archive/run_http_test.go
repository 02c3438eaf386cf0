package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/status/archiving"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// get returns a process's answer to a request for a page. The code is 0 if nothing listens at the address.
func get(t *testing.T, address, path string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// reportAt returns the report of a process. Its state is empty if nothing listens at the address yet.
func reportAt(t *testing.T, address string) (r archiving.Report) {
	t.Helper()
	if code, text := get(t, address, archiving.Path); code != 0 {
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// An archiver reports that its bucket is missing, continues by itself once the bucket exists, and reports up to which
// time the store is archived. When a second archiver takes over, the first one names it in its report and stops.
func TestAnArchiverReportsWhatItDoes(t *testing.T) {
	s := startStore(t)
	parent := filepath.Join(t.TempDir(), "mount")
	url := "file://" + filepath.Join(parent, "archive")
	first, second := loopback.Free(t), loopback.Free(t)
	stopFirst := archiveWith(t, s, url, "--stay", "--http", first)
	s.await(nil, func() bool { return reportAt(t, first).State == archiving.Waiting })
	if r := reportAt(t, first); r.Trouble == nil || r.Trouble.Reason != string(bucket.NoBucket) {
		t.Errorf("without a bucket: %+v", r.Trouble)
	}
	if code, text := get(t, first, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("without a bucket it is ready: %d, %s", code, text)
	}
	if err := os.Mkdir(parent, 0o700); err != nil {
		t.Fatal(err)
	}
	s.await(nil, func() bool { return reportAt(t, first).LagSeconds != nil })
	r := reportAt(t, first)
	if r.State != archiving.Archiving || r.Objects == 0 || r.Bytes == 0 || r.Groups != 3 || r.Waiting != 0 ||
		r.Holes != 0 || r.LastObject == nil || r.Store == "" || r.Writer == "" || r.Trouble != nil {
		t.Errorf("it archives: %+v", r)
	}
	if code, text := get(t, first, "/readyz"); code != http.StatusOK {
		t.Errorf("it archives, and is not ready: %d, %s", code, text)
	}
	_, metrics := get(t, first, "/metrics")
	var exposed []string
	for line := range strings.Lines(metrics) {
		name := line[:max(strings.IndexAny(line, " {"), 0)]
		if strings.HasPrefix(name, "sheaf_archive_") && !slices.Contains(exposed, name) {
			exposed = append(exposed, name)
		}
	}
	want := []string{
		"sheaf_archive_bytes_total", "sheaf_archive_groups", "sheaf_archive_holes", "sheaf_archive_lag_seconds",
		"sheaf_archive_last_object_timestamp_seconds", "sheaf_archive_objects_total", "sheaf_archive_pending_bytes",
		"sheaf_archive_state", "sheaf_archive_through_timestamp_seconds", "sheaf_archive_waiting_groups",
	}
	if slices.Sort(exposed); !slices.Equal(exposed, want) {
		t.Errorf("series %v, want %v", exposed, want)
	}
	if _, tls := get(t, first, "/tls"); !strings.Contains(tls, "/archive") {
		t.Errorf("its certificate: %s", tls)
	}
	stopSecond := archiveWith(t, s, url, "--stay", "--http", second)
	s.await(nil, func() bool { return reportAt(t, second).State == archiving.Archiving })
	// The archiver notices that another one has taken over only when it has something to write.
	if _, err := s.sheaf("second", "put", "1", "-"); err != nil {
		t.Fatal(err)
	}
	s.await(nil, func() bool { return reportAt(t, first).State == archiving.Ended })
	r = reportAt(t, first)
	other := reportAt(t, second)
	if r.Trouble == nil || r.Trouble.Reason != archiving.ReasonTakenOver ||
		!strings.Contains(r.Trouble.Message, other.Writer) {
		t.Errorf("taken over by %s: %+v", other.Writer, r.Trouble)
	}
	if code, _ := get(t, first, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("taken over, and ready: %d", code)
	}
	for _, stop := range []func() (int, string){stopFirst, stopSecond} {
		if code, errs := stop(); code != 0 {
			t.Errorf("stopped: %d, %s", code, errs)
		}
	}
}

func TestReasonsOfAnAttemptThatEnds(t *testing.T) {
	for want, err := range map[string]error{
		archiving.ReasonTakenOver:     fmt.Errorf("x: %w", &archiver.TakenOverError{}),
		archiving.ReasonStoreSilent:   silentError{errors.New("away")},
		archiving.ReasonNotCreateOnce: fmt.Errorf("x: %w", bucket.ErrReplaces),
		archiving.ReasonForeign:       fmt.Errorf("x: %w", object.ErrForeign),
		archiving.ReasonNewerFormat:   fmt.Errorf("x: %w", object.ErrVersion),
		archiving.ReasonWrongKey:      fmt.Errorf("x: %w", object.ErrKey),
		archiving.ReasonDamaged:       fmt.Errorf("x: %w", object.ErrCorrupt),
		string(bucket.Credentials):    fmt.Errorf("x: %w", &bucket.Error{Reason: bucket.Credentials}),
		string(bucket.Away):           syscall.ECONNREFUSED,
		string(bucket.NoBucket):       fs.ErrNotExist,
	} {
		if got := reasonOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// A failed call to the bucket is counted by its reason. Once the archive has moved past the failure, it no longer
// counts as a problem.
func TestRecoveredErrorIsNoLongerAProblem(t *testing.T) {
	p := newProcess("v", 10*time.Second)
	p.heard(fs.ErrExist)
	p.heard(syscall.ENOSPC)
	if r := p.report(); len(r.BucketErrors) != 1 || r.BucketErrors[string(bucket.Full)] != 1 ||
		r.State != archiving.Starting {
		t.Errorf("%+v", r)
	}
	at := time.Now()
	a, err := archiver.New(archiver.Options{Bucket: &heardBucket{}, Source: noSource{}, Store: [16]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	p.begin([16]byte{1}, a)
	s := archiver.Status{LastError: "create: x", LastErrorAt: at, ArchivedThrough: at.Add(-time.Second)}
	if got := p.troubled(&s); got == nil || got.Reason != string(bucket.Full) {
		t.Errorf("an error behind the archive: %+v", got)
	}
	s.LastError = "source: x"
	if got := p.troubled(&s); got == nil || got.Reason != archiving.ReasonStoreSilent {
		t.Errorf("a silent store: %+v", got)
	}
	s.ArchivedThrough = at.Add(time.Second)
	if got := p.troubled(&s); got != nil {
		t.Errorf("the archive has got past the error: %+v", got)
	}
}

// The time up to which a store is archived is reported only if no group still waits for its first copy, and if the
// store has been asked since the attempt began. The reported time never goes back.
func TestTheMarkCoversAllGroups(t *testing.T) {
	p := newProcess("v", 10*time.Second)
	p.began = time.Now()
	mark := func(after time.Duration, waiting int) time.Duration {
		p.add(&archiving.Report{}, &archiver.Status{Groups: 2, Waiting: waiting, ArchivedThrough: p.began.Add(after)})
		if p.through.IsZero() {
			return 0
		}
		return p.through.Sub(p.began)
	}
	for i, c := range []struct {
		after   time.Duration
		waiting int
		want    time.Duration
	}{{-1, 0, 0}, {1, 1, 0}, {2, 0, 2}, {3, 1, 2}, {1, 0, 2}, {4, 0, 4}} {
		if got := mark(c.after, c.waiting); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

// noSource stands for a store that is never asked for anything.
type noSource struct{ archiver.Source }
