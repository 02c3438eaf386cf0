package poolstatus

import (
	"encoding/json"
	"regexp"
	"testing"
	"unicode/utf8"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

// Whatever is observed about a pool and its shards, the API server accepts the status. If it refused a single
// condition, the whole status could not be written.
func TestTheStatusOfAnAbsurdPoolCanBeWritten(t *testing.T) {
	reason := regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`) // copied from the CRDs
	words := []string{"ssd-0", "ssd-1", string(v1alpha1.PoolDrained), "Dreaming", "not a state",
		v1alpha1.ConditionEtcdReady,
		string(v1alpha1.ShardServing), string(v1alpha1.ShardLoading), string(v1alpha1.ShardDiskLost),
		string(v1alpha1.ShardParked), fleet.GroupDamaged}
	fleettest.Absurdly(t, words, func(a *fleettest.Absurd) {
		pool := &v1alpha1.ShardPool{}
		a.Fill(pool)
		pool.Status.Conditions = nil // only the operator writes the conditions of a pool, so they are not absurd
		f := &Found{Seen: &observed.Pool{Pool: pool, Store: &v1alpha1.RecordStore{}, Shards: []*observed.Shard{}}}
		a.Fill(f.Seen.Store)
		a.Fill(&f.Statuses)
		a.Fill(&f.Held)
		a.Fill(&f.Growth)
		a.Fill(&f.Update)
		for range a.IntN(3) {
			o := &observed.Shard{}
			a.Fill(o)
			f.Seen.Shards = append(f.Seen.Shards, o)
		}
		if a.IntN(2) == 0 {
			f.Notes = step.Notes{step.Wait("Waits", "waits for "+a.Text(), 0)}
		}
		out := Summary(f)
		if !out.IsComplete() && out.Message() == "" {
			t.Fatalf("an outcome that says nothing: %+v", out)
		}
		status := Of(pool, f, out)
		if len(status.Load) > 100 || len(status.ShardStatuses) > v1alpha1.ShardStatusesMax {
			t.Fatalf("load %q, %d shards", status.Load, len(status.ShardStatuses))
		}
		if _, err := json.Marshal(status); err != nil {
			t.Fatal(err)
		}
		for _, c := range status.Conditions {
			if !reason.MatchString(c.Reason) || len(c.Message) > step.MessageMax || !utf8.ValidString(c.Message) ||
				c.Status == "" {
				t.Fatalf("%s is %q for %q: %d bytes, valid: %t", c.Type, c.Status, c.Reason, len(c.Message),
					utf8.ValidString(c.Message))
			}
		}
	})
}
