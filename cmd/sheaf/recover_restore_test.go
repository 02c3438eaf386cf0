package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/listing"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
)

// restoring is an etcd with a store of two groups that both wait for their restore.
func restoring(t *testing.T) (store *registry.Store, meta placement.Meta) {
	list := restoreList(false)
	store, err := registry.NewStore(memetcdtest.New(t).Client(t), "quotes", nil)
	if err != nil {
		t.Fatal(err)
	}
	meta = placement.Meta{StoreUUID: list.Store, Routing: list.Routing, Copies: 1,
		Restore: &placement.Restore{Source: "source:1", Listing: true}}
	if _, err := store.InitMeta(t.Context(), meta); err != nil {
		t.Fatal(err)
	}
	return store, meta
}

func listAll(t *testing.T, store *registry.Store) {
	list := restoreList(false)
	groups, err := list.Placed()
	if err == nil {
		err = store.AddRestoring(t.Context(), list.Store, list.At, groups)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The volumes hold one of the two groups, or a group that was never restored. What becomes of the other one depends on
// what etcd remembers, and on --restore.
func TestRecoveryOfAStoreThatIsRestored(t *testing.T) {
	list := restoreList(false)
	const lost, listing1, listed = "lost", "listing", "listed"
	for name, c := range map[string]struct {
		etcd    string
		random  bool // the volumes hold a group that was not restored
		later   bool // the source has a later time than the one with which the restore began
		founder bool // a shard is installing the only group that the volumes hold
		none    bool // the volumes hold no group, and routing is Named
		restore string
		fails   string
		missing string // groups that would begin empty
		waiting string // groups that wait, as far as the rebuilt placement says so
		source  string // in the rebuilt placement
		refused string // why nothing is written without --force
	}{
		"etcd is lost":                                    {etcd: lost, fails: "--restore none"},
		"etcd is lost early":                              {etcd: lost, founder: true, fails: "--restore none"},
		"etcd is lost, no volume has a group":             {etcd: lost, none: true, fails: "--restore none"},
		"etcd is lost, no volume has a group, none waits": {etcd: lost, none: true, restore: restoreNone},
		"etcd remembers the store, no volume has a group": {etcd: listed, none: true, source: "source:1"},
		"etcd is lost, the source lists": {etcd: lost, restore: "source:2", waiting: "1", source: "source:2",
			refused: "1 group is on none of these shards, and would be restored from the archive: 1. Start all"},
		"etcd is lost, the restore has ended": {etcd: lost, restore: restoreNone, missing: "1",
			refused: "such as 1"},
		"etcd is lost, the store is no restore": {etcd: lost, random: true, missing: "1",
			refused: "such as 1"},
		"etcd remembers": {etcd: listed, source: "source:1"},
		"etcd remembers another time": {etcd: listed, restore: "source:2", later: true,
			fails: "former time"},
		"etcd remembers that time": {etcd: listed, restore: "source:2", waiting: "1", source: "source:2",
			refused: "1 group is"},
		"etcd remembers no time": {etcd: listing1, restore: "source:2", later: true, waiting: "1", source: "source:2",
			refused: "1 group is"},
		"etcd remembers, and a person does not":        {etcd: listed, restore: restoreNone, fails: "give-up"},
		"etcd remembers that groups are being listed":  {etcd: listing1, source: "source:1"},
		"groups are being listed, a person says: none": {etcd: listing1, restore: restoreNone, fails: "give-up"},
	} {
		synctest.Test(t, func(t *testing.T) {
			store, meta := restoring(t)
			if c.etcd == listed {
				listAll(t, store)
			}
			if c.etcd == lost {
				other, err := registry.NewStore(memetcdtest.New(t).Client(t), "quotes", nil)
				if err != nil {
					t.Fatal(err)
				}
				store = other
			}
			id := uuid.NewSHA1(list.Store, []byte("0"))
			if c.random {
				id = uuid.New()
			}
			replica := rescue.FoundReplica{Name: "0", UUID: id, Store: list.Store, RaftID: 7, Voters: []uint64{7}}
			if c.founder {
				replica = rescue.FoundReplica{UUID: id, Store: list.Store, RaftID: 7, Joining: true}
			}
			volume := rescue.FoundVolume{Shard: "a", UUID: uuid.UUID{5}, Store: list.Store,
				Facts:    &rescue.FoundFacts{Routing: meta.Routing, Copies: 1},
				Replicas: []rescue.FoundReplica{replica}}
			if c.none {
				volume.Facts.Routing, volume.Replicas = placement.Routing{Mode: placement.Named}, nil
			}
			rebuilt, err := rescue.Rebuild(list.Store, []rescue.FoundVolume{volume}, nil)
			if err != nil {
				t.Fatal(err)
			}
			f := recoverFlags{store: uuidFlag(list.Store), restore: c.restore}
			err = f.addRestore(t.Context(), store, func(context.Context, string) (listing.List, error) {
				list := list
				if c.later {
					list.At = list.At.Add(1)
				}
				return list, nil
			}, &rebuilt)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("%s: %v", name, err)
				}
				return
			}
			waiting, source := "", ""
			for _, g := range rebuilt.Groups {
				if g.Restoring {
					waiting += g.Name
				}
			}
			if rebuilt.Meta.Restore != nil {
				source = rebuilt.Meta.Restore.Source
			}
			if err != nil || strings.Join(rebuilt.Missing, "") != c.missing || waiting != c.waiting || source != c.source {
				t.Errorf("%s: %v, missing %q, waiting %q, source %q", name, err, rebuilt.Missing, waiting, source)
			}
			err = unforced(rebuilt)
			if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: without --force: %v", name, err)
			}
		})
	}
}

// Groups are made empty only with --yes, and only if all of them wait.
func TestTheRestoreOfGroupsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, meta := restoring(t)
		listAll(t, store)
		out := &cli.Output{Out: io.Discard, Err: io.Discard}
		waiting := func() (names string) {
			_, groups, err := store.Waiting(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range groups {
				names += g.Name
			}
			return names
		}
		f := giveUpFlags{store: uuidFlag(meta.StoreUUID)}
		if err := f.empty(t.Context(), out, store, []string{"1"}); err != nil || waiting() != "01" {
			t.Errorf("without --yes: %v, %s wait", err, waiting())
		}
		f.yes = true
		if err := f.empty(t.Context(), out, store, []string{"1", "2"}); err == nil || waiting() != "01" {
			t.Errorf("one of them does not wait: %v, %s wait", err, waiting())
		}
		if err := f.empty(t.Context(), out, store, []string{"1"}); err != nil || waiting() != "0" {
			t.Errorf("%v, %s wait", err, waiting())
		}
		f.store = uuidFlag{9}
		if err := f.empty(t.Context(), out, store, []string{"0"}); !errors.Is(err, placement.ErrOtherStore) ||
			waiting() != "0" {
			t.Errorf("another store: %v, %s wait", err, waiting())
		}
	})
}
