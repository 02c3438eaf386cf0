package storetest

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestUnreachableLearnerIsReported moves groups to a new shard. This shard can fetch the files of the
// groups, but the leaders cannot reach it. `sheaf doctor` must report the copies on it in time, and must stop
// reporting them when the leaders can reach the shard. The test takes 1 s of CPU time.
func TestUnreachableLearnerIsReported(t *testing.T) {
	synctest.Test(t, learnerIsNeverHeard)
}

func learnerIsNeverHeard(t *testing.T) {
	s := StartWith(t, Config{Shards: 3, Copies: 3})
	ctx := t.Context()
	meta, err := s.Store.Meta(ctx)
	must.OK(t, err)
	name := "shard-3"
	s.unreachable.Store(&name)
	s.shards, s.disks = append(s.shards, nil), append(s.disks, vfstest.NewMem())
	must.OK(t, s.startShard(ctx, 3))
	must.OK(t, s.Store.SetShardState(ctx, meta.StoreUUID, "shard-1", placement.Draining))
	a := adminClient(t, s)
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		list, err := recordv1.AllGroups(ctx, a, &recordv1.ListGroupsRequest{})
		must.OK(t, err)
		if slices.ContainsFunc(list.GetGroups(), func(g *recordv1.Group) bool {
			return g.GetShard() == name && g.GetState() == recordv1.GroupState_GROUP_STATE_SERVING && g.GetCopy() == nil
		}) {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("no copy on %s has its files: %v", name, list.GetGroups())
		}
	}
	reported := func(found []finding.Finding) bool {
		return slices.ContainsFunc(found, func(f finding.Finding) bool {
			return f.Kind == finding.CopySilent && strings.Contains(f.What, "new copy on shard "+name)
		})
	}
	rule, _ := finding.RuleOf(finding.CopySilent)
	awaitFindings(t, ctx, s, rule.Within, "a learner that is not heard is reported", reported)
	s.unreachable.Store(nil)
	awaitFindings(t, ctx, s, rule.Gone, "it is gone", func(found []finding.Finding) bool { return !reported(found) })
}
