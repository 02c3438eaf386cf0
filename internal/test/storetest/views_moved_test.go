package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// A copy that was installed after a view was opened answers for it, because history moves with the group.
func TestAViewMovesWithItsGroups(t *testing.T) {
	for _, copies := range []int{1, 3} {
		t.Run(fmt.Sprint("copies=", copies), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { aViewMoves(t, copies) })
		})
	}
}

func aViewMoves(t *testing.T, copies int) {
	v := newViewed(t, Config{Groups: 2, Shards: copies + 1, Copies: copies})
	v.write(0, 50, 0)
	v.write(0, 50, 1)
	view := v.open()
	model := v.model()
	v.write(5, 55, 2)
	v.write(0, 30, 3)
	meta, err := v.Store.Meta(v.ctx)
	must.OK(t, err)
	for n := range copies + 1 { // each shard is emptied in turn, so that every copy was installed at least once
		must.OK(t, v.Store.SetShardState(v.ctx, meta.StoreUUID, name(n), placement.Draining))
		holders := v.awaitEmpty(n)
		time.Sleep(11 * time.Minute) // while a hold is set, versions are kept for 10 minutes anyway
		for group, shards := range holders {
			want := maps.Clone(model)
			maps.DeleteFunc(want, func(id int64, _ []byte) bool {
				return placement.GroupName(meta.Routing.GroupOf(id)) != group
			})
			for _, shard := range shards {
				at := v.ShardAddr(shard)
				_, err := recordv1.NewAdminServiceClient(v.conn(at)).Compact(v.ctx, &recordv1.CompactRequest{Group: group,
					All: true})
				must.OK(t, err)
				plan, err := recordv1.NewRecordServiceClient(v.conn(at)).PlanScan(v.ctx, &recordv1.PlanScanRequest{
					Groups: []string{group}, View: view})
				if err != nil {
					t.Errorf("%s emptied: shard %d does not plan a scan of group %s: %v", name(n), shard, group, err)
					continue
				}
				if got := v.scanned(at, view, plan.GetSplits()); !maps.EqualFunc(got, want, bytes.Equal) {
					t.Errorf("%s emptied: shard %d has %d records of group %s, want %d", name(n), shard, len(got), group,
						len(want))
				}
			}
		}
		v.holds(v.Addr(), view, v.plan(v.Addr(), view), model)
		must.OK(t, v.Store.SetShardState(v.ctx, meta.StoreUUID, name(n), placement.Active))
	}
}

func name(shard int) string { return fmt.Sprintf("shard-%d", shard) }

// awaitEmpty waits until a shard has no copy of any group and no move is in progress. It returns the shards that have
// copies, by group.
func (v *viewed) awaitEmpty(shard int) map[string][]int {
	v.Helper()
	for began := time.Now(); ; time.Sleep(time.Second) {
		view, err := v.Store.View(v.ctx)
		must.OK(v, err)
		holders, moving := map[string][]int{}, false
		for _, group := range slices.Sorted(maps.Keys(view.Groups)) {
			for _, m := range view.Groups[group].Members {
				var n int
				_, err := fmt.Sscanf(m.Shard, "shard-%d", &n)
				must.OK(v, err)
				moving = moving || n == shard || m.Role == placement.Learner
				holders[group] = append(holders[group], n)
			}
		}
		if !moving {
			return holders
		}
		if time.Since(began) > 10*time.Minute {
			v.Fatalf("shard %d still has groups: %v", shard, holders)
		}
	}
}
