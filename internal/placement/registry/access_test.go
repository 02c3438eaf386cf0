package registry_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

func TestAllHaveOneKeyOfSeals(t *testing.T) { synctest.Test(t, allHaveOneKeyOfSeals) }

func allHaveOneKeyOfSeals(t *testing.T) {
	client := memetcdtest.New(t).Client(t)
	store, other := newStore(t, client), newStore(t, client)
	keys := make([]string, 8)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			key, err := store.SigningKey(testContext(t))
			if err != nil {
				t.Error(err)
			}
			keys[i] = string(key)
		})
	}
	all.Wait()
	for _, key := range keys {
		if len(key) != 32 || key != keys[0] {
			t.Errorf("%x and %x", key, keys[0])
		}
	}
	if foreign, err := other.SigningKey(testContext(t)); err != nil || string(foreign) == keys[0] {
		t.Errorf("%x, %v", foreign, err)
	}
}

func TestTheTableOfGrantsIsReplacedWhereItIsAsItWasRead(t *testing.T) {
	synctest.Test(t, theTableOfGrantsIsReplacedWhereItIsAsItWasRead)
}

func theTableOfGrantsIsReplacedWhereItIsAsItWasRead(t *testing.T) {
	store := newStore(t, memetcdtest.New(t).Client(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tables := store.WatchAccess(ctx)
	next := func(want string) registry.Access {
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
	must.OK(t, store.PutAccess(ctx, []byte("one"), 0))
	first := next("one")
	if err := store.PutAccess(ctx, []byte("two"), 0); !errors.Is(err, placement.ErrAccessChanged) {
		t.Error(err)
	}
	must.OK(t, store.PutAccess(ctx, []byte("two"), first.Revision))
	second := next("two")
	if got, err := store.Access(ctx); err != nil || string(got.Table) != "two" || got.Revision != second.Revision {
		t.Error(got, err)
	}
	if _, err := store.View(ctx); !errors.Is(err, placement.ErrNoMeta) {
		t.Error("the table makes a store:", err)
	}
}
