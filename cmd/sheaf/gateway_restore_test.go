package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/listing"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
)

// restoreList returns what a source lists.
func restoreList(broken bool) listing.List {
	l := listing.List{Store: uuid.UUID{1}, Archived: uuid.UUID{2}, At: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC),
		Routing: placement.Routing{Mode: placement.Hash, Groups: 2},
		Groups:  []listing.Group{{Name: "0", UUID: uuid.UUID{3}}, {Name: "1", UUID: uuid.UUID{4}}}}
	if broken {
		l.Groups[1].Err = "its segment is missing"
	}
	return l
}

// Each start of a gateway with --create --restore is made on an empty etcd, on one with another store, or on one in
// which the restore has begun or has ended.
func TestAGatewayCreatesAStoreFromAnArchive(t *testing.T) {
	list := restoreList(false)
	begun := placement.Meta{StoreUUID: list.Store, Routing: list.Routing, Copies: 3,
		Restore: &placement.Restore{Source: "source:1", Listing: true, At: "2026-11-01T12:00:00Z"}}
	ended := begun
	ended.Restore = &placement.Restore{Source: "source:1", At: "2026-11-01T12:00:00Z"}
	fresh, other, later := begun, begun, begun
	fresh.StoreUUID, fresh.Restore = uuid.UUID{9}, nil
	other.StoreUUID = uuid.UUID{8}
	later.Restore = &placement.Restore{Source: "source:1", Listing: true, At: "2026-11-02T12:00:00Z"}
	away := errors.New("the source is away")
	partly := func(f *gatewayFlags) { f.partly = true }
	first := func(names ...string) func(f *gatewayFlags) { return func(f *gatewayFlags) { f.first = names } }
	writes := func(value string) func(f *gatewayFlags) { return func(f *gatewayFlags) { f.writes = value } }
	moved := func(f *gatewayFlags) { f.restore = "source:2" }
	for name, c := range map[string]struct {
		there  *placement.Meta
		list   listing.List
		asked  error // what the source answers, if not the list
		flags  string
		change func(f *gatewayFlags)
		fails  string
		source string // in meta afterwards; empty: etcd is as it was before
	}{
		"an empty etcd":                         {list: list, source: "source:1"},
		"the source is away":                    {list: list, asked: away, fails: "is away"},
		"a group is lost":                       {list: restoreList(true), fails: "group 1: its segment is missing"},
		"a group is lost, and that is fine":     {list: restoreList(true), change: partly, source: "source:1"},
		"a group comes first":                   {list: list, change: first("1", "0"), source: "source:1"},
		"a group comes first that is not there": {list: list, change: first("2"), fails: "group 2 is to be restored first"},
		"a group comes first twice":             {list: list, change: first("1", "1"), fails: "is there twice"},
		"begun, and now a group comes first":    {there: &begun, list: list, change: first("1"), fails: "leave the flag out"},
		"writes begin at once":                  {list: list, change: writes("at-once"), source: "source:1"},
		"begun, and now writes begin at once": {there: &begun, list: list, change: writes("at-once"),
			fails: "leave the flag out"},
		"begun, and writes are as before": {there: &begun, list: list, change: writes("redundant"), source: "source:1"},
		"other groups": {list: list, flags: "groups", change: func(f *gatewayFlags) { f.groups = 3 },
			fails: "--groups 3"},
		"another routing": {list: list, flags: "routing", change: func(f *gatewayFlags) { f.routing = "named" },
			fails: "--routing named"},
		"another UUID": {list: list, change: func(f *gatewayFlags) { f.uid = uuidFlag{7} }, fails: "--store-uid"},
		"the same UUID": {list: list, change: func(f *gatewayFlags) { f.uid = uuidFlag(list.Store) },
			source: "source:1"},
		"begun":                           {there: &begun, list: list, source: "source:1"},
		"begun, and the source is away":   {there: &begun, asked: away, source: "source:1"},
		"begun as of another time":        {there: &later, list: list, fails: "start the source with the former time"},
		"begun with another source":       {there: &begun, list: list, change: moved, source: "source:2"},
		"ended":                           {there: &ended, asked: away, source: "source:1"},
		"ended, and the source has moved": {there: &ended, list: list, change: moved, source: "source:2"},
		"ended, with other copies": {there: &ended, asked: away, flags: "copies",
			change: func(f *gatewayFlags) { f.copies = 5 }, fails: "copies 3"},
		"a store that is no restore": {there: &fresh, list: list, fails: "was not created from an archive"},
		"a restore of another store": {there: &other, list: list, fails: "restores into store"},
		"a restore of another UUID, ended": {there: &ended, asked: away,
			change: func(f *gatewayFlags) { f.uid = uuidFlag{7} }, fails: "is another restore"},
	} {
		synctest.Test(t, func(t *testing.T) {
			store, err := registry.NewStore(memetcdtest.New(t).Client(t), "quotes", nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.there != nil {
				if _, err := store.InitMeta(t.Context(), *c.there); err != nil {
					t.Fatal(err)
				}
			}
			f := gatewayFlags{create: true, copies: 3, routing: "hash", groups: 16, restore: "source:1",
				given: func(flag string) bool { return flag == c.flags }}
			if c.change != nil {
				c.change(&f)
			}
			if err := f.checkRestore(); err != nil {
				t.Fatal(err)
			}
			meta, err := f.restored(t.Context(), store, func(context.Context, string) (listing.List, error) {
				return c.list, c.asked
			}, slog.New(slog.DiscardHandler))
			if c.fails == "" && (err != nil || meta.StoreUUID != list.Store || meta.Copies != 3) ||
				c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("%s: %+v, %v", name, meta, err)
			}
			now, err := store.Meta(t.Context())
			switch {
			case c.there == nil && c.source == "" && !errors.Is(err, placement.ErrNoMeta):
				t.Errorf("%s: the store was created: %+v, %v", name, now, err)
			case c.source != "" && (err != nil || now.Restore == nil || now.Restore.Source != c.source ||
				c.there == nil && now.Restore.Writes != restoreWrites[f.writes] ||
				now.Routing != list.Routing || now.Restore.Listing != (c.there == nil || c.there.Restore.Listing)):
				t.Errorf("%s: meta is %+v, %+v, %v", name, now, now.Restore, err)
			}
		})
	}
}

// The flags of a restore go with --create.
func TestTheFlagsOfARestore(t *testing.T) {
	for want, f := range map[string]gatewayFlags{
		"--create":  {restore: "source:1"},
		"--restore": {create: true, partly: true},
		"HOST:PORT": {create: true, restore: "source"},
		"goes with": {create: true, writes: "at-once"},
		"at-once":   {create: true, restore: "source:1", writes: "never"},
	} {
		if err := f.checkRestore(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}
