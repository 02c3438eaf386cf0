package shard

import (
	"errors"
	"slices"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/shard/problems"
)

// A problem is reported only as long as its cause lasts, however the cause ends. A replica that no longer leads does
// not move its group, a replica without damage is not repaired, and a group that has left a shard has no problems on
// that shard. A chaos test once found a shard that reported for minutes that it could not move some groups, although
// it had lost their leadership while etcd was stopped.
func TestProblemsOfGroupsEndWithTheirCause(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, hash1)
		broken := errors.New("context deadline exceeded")
		for _, name := range abc {
			s := c.shards[name].shard
			if len(s.Status().GetShard().Problems) > 0 {
				t.Fatalf("shard %s begins with %q", name, s.Status().GetShard().Problems)
			}
			leads := s.Status().Groups[0].Leader
			subjects := []string{problems.Repairing + "0", problems.Repairing + "gone", problems.Moving + "gone",
				problems.Installing + "gone",
				problems.Compacting + "gone"}
			if !leads {
				subjects = append(subjects, problems.Moving+"0")
			}
			for _, what := range subjects {
				s.problems.Note(what, broken)
			}
			s.problems.Note(problems.Compacting+"0", broken)
			s.problems.Note("the registration in etcd", broken)
			time.Sleep(5 * time.Second)
			want := []string{problems.Compacting + "0: " + broken.Error(), "the registration in etcd: " + broken.Error()}
			if got := s.Status().GetShard().Problems; !slices.Equal(got, want) {
				t.Errorf("shard %s, which leads: %v, has the problems %q, want %q", name, leads, got, want)
			}
		}
	})
}
