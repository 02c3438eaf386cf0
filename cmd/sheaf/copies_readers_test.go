package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// copiesReaders scan, find and watch all records repeatedly.
type copiesReaders struct {
	t      *testing.T
	c      *client.Client
	ctx    context.Context
	wait   sync.WaitGroup
	failed atomic.Pointer[error]
	scans  atomic.Int64
	finds  atomic.Int64
	begun  sync.WaitGroup // done once every watch has started

	mu   sync.Mutex
	seen map[int64]string // maps each record to the version that a watch last returned
}

// steadyRecords is the number of records that never change. Their ids start at 0.
const steadyRecords = 120

func (r *copiesReaders) fail(err error) {
	if r.ctx.Err() == nil {
		r.failed.CompareAndSwap(nil, &err)
	}
}

func (r *copiesReaders) start() {
	r.wait.Go(func() {
		for r.ctx.Err() == nil {
			r.scan()
		}
	})
	r.wait.Go(func() {
		for id := int64(0); r.ctx.Err() == nil; id = (id + 1) % steadyRecords {
			if got, err := r.c.Find(r.ctx, id); err != nil || len(got) != 1 {
				r.fail(fmt.Errorf("find %d: %d records, %w", id, len(got), err))
				return
			}
			r.finds.Add(1)
		}
	})
	for n := range 16 {
		r.begun.Add(1)
		r.wait.Go(func() { r.watch(fmt.Sprint(n)) })
	}
}

// scan counts the records that never change. If its snapshot is lost together with the leader that holds it, scan
// starts again.
func (r *copiesReaders) scan() {
	found := map[int64]bool{}
	for record, err := range r.c.Scan(r.ctx, &client.ScanOptions{MetadataOnly: true}) {
		if errors.Is(err, client.ErrCursorExpired) {
			return
		}
		if err != nil {
			r.fail(fmt.Errorf("scan: %w", err))
			return
		}
		if record.Key.ID < steadyRecords {
			found[record.Key.ID] = true
		}
	}
	if len(found) != steadyRecords {
		r.fail(fmt.Errorf("a scan gave %d of %d records", len(found), steadyRecords))
		return
	}
	r.scans.Add(1)
}

func (r *copiesReaders) watch(group string) {
	begun := sync.OnceFunc(r.begun.Done)
	defer begun()
	for record, err := range r.c.Watch(r.ctx, group, &client.WatchOptions{OnCursor: func([]byte) { begun() }}) {
		if err != nil {
			r.fail(fmt.Errorf("watch %s: %w", group, err))
			return
		}
		r.mu.Lock()
		r.seen[record.Key.ID] = record.Version
		r.mu.Unlock()
	}
}

// until waits until is() returns true. is examines what the readers have seen so far.
func (r *copiesReaders) until(is func() bool) {
	r.t.Helper()
	for !is() {
		if err := r.failed.Load(); err != nil {
			r.t.Fatal(*err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestReadersSurviveKills kills each of three shards in turn during scans, searches and watches. No reader may fail or
// miss a record.
func TestReadersSurviveKills(t *testing.T) {
	soaktest.Only(t, "proc", "`make chaos` brings the same faults")
	s := newCopiesStore(t)
	s.waitReady()
	writer := s.client(true)
	versions := map[int64]string{}
	put := func(id int64) {
		t.Helper()
		result, err := writer.Put(t.Context(), client.Key{ID: id}, pattern(uint64(id), 100), nil)
		must(t, err)
		versions[id] = result.Version
	}
	for id := range int64(steadyRecords) {
		put(id)
	}
	clear(versions) // the watches start now, so they do not report these versions
	ctx, stop := context.WithCancel(t.Context())
	var all []*copiesReaders
	for _, direct := range []bool{false, true} {
		r := &copiesReaders{t: t, c: s.client(direct), ctx: ctx, seen: map[int64]string{}}
		t.Cleanup(r.wait.Wait)
		r.start()
		all = append(all, r)
	}
	t.Cleanup(stop)
	for _, r := range all {
		r.begun.Wait()
	}
	for _, name := range copiesShards {
		s.shards[name].kill()
		for id := range int64(40) {
			put(1000 + id)
		}
		for _, r := range all {
			scans, finds := r.scans.Load(), r.finds.Load()
			r.until(func() bool { return r.scans.Load() > scans+1 && r.finds.Load() > finds+1 })
		}
		s.start(name)
		s.shards[name].waitReady(t)
	}
	for _, r := range all {
		r.until(func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			for id, version := range versions {
				if r.seen[id] != version {
					return false
				}
			}
			return true
		})
		t.Logf("%d scans, %d looks for a record", r.scans.Load(), r.finds.Load())
	}
}
