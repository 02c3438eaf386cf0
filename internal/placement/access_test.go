package placement_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/etcd/etcdtest"
	"sheaf.dev/sheaf/internal/placement"
)

func TestTheTableOfGrantsIsReplacedWhereItIsAsItWasRead(t *testing.T) {
	store := newStore(t, connect(t, etcdtest.Shared(t)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tables := store.WatchAccess(ctx)
	next := func(want string) placement.Access {
		t.Helper()
		got, ok := <-tables
		if !ok || string(got.Table) != want {
			t.Fatalf("%s instead of %q, %v", got.Table, want, ok)
		}
		return got
	}
	if got := next(""); got.Revision != 0 {
		t.Error(got)
	}
	if err := store.PutAccess(ctx, []byte("one"), 7); !errors.Is(err, placement.ErrAccessChanged) {
		t.Error(err)
	}
	if err := store.PutAccess(ctx, []byte("one"), 0); err != nil {
		t.Fatal(err)
	}
	first := next("one")
	if err := store.PutAccess(ctx, []byte("two"), 0); !errors.Is(err, placement.ErrAccessChanged) {
		t.Error(err)
	}
	if err := store.PutAccess(ctx, []byte("two"), first.Revision); err != nil {
		t.Fatal(err)
	}
	second := next("two")
	if got, err := store.Access(ctx); err != nil || string(got.Table) != "two" || got.Revision != second.Revision {
		t.Error(got, err)
	}
	if _, err := store.View(ctx); !errors.Is(err, placement.ErrNoMeta) {
		t.Error("the table makes a store:", err)
	}
}
