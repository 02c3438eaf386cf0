package shard

import (
	"errors"
	"testing"
	"testing/synctest"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/storage/group"
)

// Tombstones eventually disappear from every copy, not only from that of the leader. The other copies learn up to
// which index every copy has all entries.
func TestEveryCopyDropsItsTombstones(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, oneGroup)
		id := c.registry.now().Groups["0"].UUID
		// The puts have no request ids, because the log would keep entries with request ids.
		put := func(id int64, data []byte) {
			c.call(func(f *fixture) error {
				_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id), Data: data})
				return err
			})
		}
		const records = 20
		for n := range int64(records) {
			put(n, data(n, 100))
		}
		for n := range int64(records) {
			c.call(func(f *fixture) error {
				_, err := f.records.Delete(f.ctx(), &recordv1.DeleteRequest{Key: key(n)})
				return err
			})
		}
		gone := func(f *fixture) bool {
			sv := f.shard.replicas.Routes().Served(id)
			if _, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", All: true}); err != nil || sv == nil {
				return false
			}
			for n := range int64(records) {
				_, deleted, err := sv.Log().Head(n)
				if err == nil && !deleted || err != nil && !errors.Is(err, group.ErrNotFound) {
					t.Fatalf("record %d on %s: %v", n, f.cfg.Name, err)
				}
				if deleted {
					return false
				}
			}
			return true
		}
		n := int64(0)
		c.eventually("no copy has a tombstone", func() bool {
			n++
			put(1000+n%2, data(n, 700<<10)) // this changes the group's size enough for a report to etcd
			synctest.Wait()                 // a copy that was not needed for the majority may have lagged behind up to now
			all := true
			for _, name := range abc {
				all = gone(c.shards[name]) && all
			}
			return all
		})
	})
}
