package shard

import (
	"context"
	"errors"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/placement"
)

// A shard follows its own groups (registry.Store.Follow). It asks etcd about another group when a call for that group
// has come to the wrong shard.

const (
	lookupTime   = 2 * time.Second
	lookupKeep   = time.Second // how long one answer serves all calls
	lookupsMax   = 16          // lookups in progress at a time
	lookupsKnown = 4096
)

// errBusyLookups means that too many lookups run for this one to start.
var errBusyLookups = errors.New("too many groups that are elsewhere are asked for")

// lookups are requests to etcd for groups that are not this shard's.
type lookups struct {
	ask   func(group string) (placement.View, error) // etcd
	begin func(func())                               // runs a function in the background

	mu      sync.Mutex
	running int
	recent  map[string]*lookup // by group
}

// lookup is one request. Its result may be read when done is closed.
type lookup struct {
	began time.Time
	done  chan struct{}
	view  placement.View
	err   error
}

// isOver reports whether a lookup is useless to callers that know the given epoch.
func (l *lookup) isOver(epoch uint64) bool {
	select {
	case <-l.done:
		return time.Since(l.began) > lookupKeep || l.err != nil || l.view.Epoch < epoch
	default:
		return false
	}
}

// find returns a view of one group from etcd. The view is older than the given epoch only if etcd itself is older.
func (q *lookups) find(ctx context.Context, name string, epoch uint64) (placement.View, error) {
	q.mu.Lock()
	l := q.recent[name]
	if l == nil || l.isOver(epoch) {
		if q.running >= lookupsMax {
			q.mu.Unlock()
			return placement.View{}, errBusyLookups
		}
		if len(q.recent) >= lookupsKnown || q.recent == nil {
			q.recent = map[string]*lookup{}
		}
		l = &lookup{began: time.Now(), done: make(chan struct{})}
		q.recent[name] = l
		q.running++
		q.begin(func() {
			view, err := q.ask(name)
			q.mu.Lock()
			defer q.mu.Unlock()
			l.view, l.err = view, err
			q.running-- // before done is closed, because callers that it wakes may ask for another group
			close(l.done)
		})
	}
	q.mu.Unlock()
	select {
	case <-l.done:
		return l.view, l.err
	case <-ctx.Done():
		return placement.View{}, ctx.Err()
	}
}
