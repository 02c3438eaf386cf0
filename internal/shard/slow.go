package shard

import (
	"path"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/shard/replicas"
)

const (
	// slowCallMin is the duration above which a call is slow. A call takes milliseconds on a healthy machine, and
	// tens of milliseconds on a loaded HDD. A call that took longer than a second has waited for something: a disk,
	// an election, a group that was loading.
	slowCallMin = time.Second
	// slowSyncMin is less than slowCallMin, because one write can wait for two syncs in a row, the one in progress and its
	// own.
	slowSyncMin = 500 * time.Millisecond
	// slowKept is how many slow calls are kept, and how many slow syncs. A slow disk causes thousands of them, but this
	// many are enough to show whether all of them concern one group, one method or one file.
	slowKept = 32
	// slowErrorBytesMax is how many bytes of an error message are kept, so that the size of a ring is bounded.
	slowErrorBytesMax = 256
)

// slow records slow calls and syncs since the shard started.
type slow struct {
	routes func() *replicas.Routes
	calls  ring[*recordv1.SlowCall]
	syncs  ring[*recordv1.SlowSync]
}

// ring keeps the newest slowKept elements that were added. It is safe for concurrent use; the zero value is ready.
type ring[T any] struct {
	mu    sync.Mutex
	total int64
	kept  [slowKept]T // the next element is put at total % slowKept
}

func (r *ring[T]) add(one T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept[r.total%slowKept] = one
	r.total++
}

// newest returns the kept elements, newest first, and the total number of added elements.
func (r *ring[T]) newest() (kept []T, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := r.total - 1; n >= 0 && n >= r.total-slowKept; n-- {
		kept = append(kept, r.kept[n%slowKept])
	}
	return kept, r.total
}

// status returns the slow calls and syncs.
func (s *slow) status() *recordv1.SlowOperations {
	st := &recordv1.SlowOperations{}
	st.Calls, st.CallsTotal = s.calls.newest()
	st.Syncs, st.SyncsTotal = s.syncs.newest()
	return st
}

// sync records a sync that took longer than slowSyncMin. The file is given by its path.
func (s *slow) sync(name, kind string, took time.Duration, err error) {
	one := &recordv1.SlowSync{BeganUnixNs: time.Now().Add(-took).UnixNano(), DurationNs: took.Nanoseconds(), Kind: kind,
		File: strings.Clone(path.Base(name))}
	if err != nil {
		text := err.Error()
		one.Error = strings.ToValidUTF8(text[:min(len(text), slowErrorBytesMax)], "")
	}
	// A group's files are in a folder named after the group's UUID.
	if id, err := uuid.Parse(path.Base(path.Dir(name))); err == nil {
		if g := s.routes().ByUUID[id]; g != nil {
			one.Group = g.Name
		}
	}
	s.syncs.add(one)
}
