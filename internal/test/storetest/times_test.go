package storetest

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/test/must"
)

// TestFindingsFollowTheirCausesInTime causes findings, one after the other. `sheaf doctor` must report each of them
// within the time that the finding's rule allows. Then the test removes the cause, and within the same time `sheaf
// doctor` must stop reporting the finding. Chaos checks the same with real processes. The test takes 2 s of CPU time.
func TestFindingsFollowTheirCausesInTime(t *testing.T) { synctest.Test(t, findingsFollowTheirCauses) }

func findingsFollowTheirCauses(t *testing.T) {
	s := StartWith(t, Config{Shards: 3, Copies: 3})
	ctx := t.Context()
	meta, err := s.Store.Meta(ctx)
	must.OK(t, err)
	etcd := s.Etcd.Client(t)
	put := func(key, value string) error {
		_, err := etcd.Put(ctx, "/sheaf/test/"+key, value)
		return err
	}
	remove := func(key string) error {
		_, err := etcd.Delete(ctx, "/sheaf/test/"+key)
		return err
	}
	state := func(state placement.ShardState) error {
		return s.Store.SetShardState(ctx, meta.StoreUUID, "shard-1", state)
	}
	const where = "shard shard-1"
	awaitFindings(t, ctx, s, time.Minute, "nothing is wrong",
		func(found []finding.Finding) bool { return len(found) == 0 })
	for _, c := range []struct {
		kind       finding.Kind
		where      string
		cause, end func() error
	}{
		{finding.ShardSilent, where, func() error { s.KillShard(1); return nil }, func() error { return s.RestartShard(1) }},
		{finding.ShardCordoned, where, func() error { return state(placement.Cordoned) },
			func() error { return state(placement.Active) }},
		{finding.DrainWaits, where, func() error { return state(placement.Draining) },
			func() error { return state(placement.Active) }},
		{finding.DiskFull, where, func() error { s.Disk(1).SetCapacity(reserveBytes); return nil },
			func() error { s.Disk(1).SetCapacity(0); return nil }},
		{finding.DiskNearlyFull, where, func() error { s.Disk(1).SetCapacity(2 * reserveBytes); return nil },
			func() error { s.Disk(1).SetCapacity(0); return nil }},
		{finding.StoreProblem, "store", func() error { return put("shards/shard-9", "{}") },
			func() error { return remove("shards/shard-9") }},
		{finding.StoreProblem, "store", func() error { s.Etcd.Away(); return nil },
			func() error { s.Etcd.Back(); return nil }},
	} {
		rule, ok := finding.RuleOf(c.kind)
		if !ok {
			t.Fatalf("%s has no rule", c.kind)
		}
		reports := func(found []finding.Finding) bool {
			return slices.ContainsFunc(found, func(f finding.Finding) bool { return f.Kind == c.kind && f.Where == c.where })
		}
		if err := c.cause(); err != nil {
			t.Fatalf("the cause of %s: %v", c.kind, err)
		}
		awaitFindings(t, ctx, s, rule.Within, string(c.kind)+" is reported", reports)
		if err := c.end(); err != nil {
			t.Fatalf("the end of the cause of %s: %v", c.kind, err)
		}
		awaitFindings(t, ctx, s, rule.Gone, string(c.kind)+" is gone",
			func(found []finding.Finding) bool { return !reports(found) })
		awaitFindings(t, ctx, s, time.Minute, "nothing is wrong after "+string(c.kind),
			func(found []finding.Finding) bool { return len(found) == 0 })
	}
}

// awaitFindings calls doctor() until its findings are as wanted. The argument within is the time that is allowed for
// this. The test fails if a call that began after that time still does not return the wanted findings.
func awaitFindings(t *testing.T, ctx context.Context, s *Server, within time.Duration, what string,
	wanted func([]finding.Finding) bool) {
	t.Helper()
	for called := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		began := time.Since(called)
		found := findings(t, ctx, s)
		if wanted(found) {
			t.Logf("%s by a call after %v, in %v", what, began, time.Since(called)-began)
			return
		}
		if began >= within {
			t.Errorf("not within %v: %s: %+v", within, what, found)
			return
		}
	}
}
