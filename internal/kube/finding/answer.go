package finding

import (
	"cmp"
	"strings"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/finding"
)

// answer adds what sheaf doctor finds in a gateway's answer. It leaves out findings about a shard of which the objects
// already say at least as much: a node that is down explains a silent shard, and has a better next step.
func (l *look) answer() {
	if l.Answer == nil {
		return
	}
	facts := *l.Answer
	facts.Managed = true
	for _, f := range finding.Of(facts) {
		shard, ofShard := strings.CutPrefix(f.Where, "shard ")
		if worst, explained := l.explained[shard]; ofShard && explained &&
			(finding.BySeverity(worst, f.Severity) <= 0 || isSilence(facts, shard) && !isNeeded(facts, shard)) {
			continue
		}
		if _, at, ofCopy := strings.Cut(f.Where, " on shard "); ofCopy {
			shard, ofShard = at, true
		}
		command := l.kubectl("describe recordstore %s", l.Store.Name)
		if ofShard {
			command = l.kubectl("logs %s", workload.ShardPod(shard))
		}
		f.Do = cmp.Or(f.Do, command)
		l.found = append(l.found, f)
	}
}

// isSilence reports whether a gateway says of a shard only that it does not answer.
func isSilence(facts finding.Facts, shard string) bool {
	for _, s := range facts.Shards {
		if s.GetName() == shard {
			return !s.GetAlive()
		}
	}
	return false
}

// isNeeded reports whether a group with a copy on a shard is not served, because so many copies do not answer that the
// others are no majority. Then the silence of the shard is a problem, whatever explains it.
func isNeeded(facts finding.Facts, shard string) bool {
	copies, away, led, here := map[string]int{}, map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, g := range facts.Groups {
		name := g.GetGroup()
		copies[name]++
		led[name] = led[name] || g.GetLeader()
		here[name] = here[name] || g.GetShard() == shard
		if g.GetState() == recordv1.GroupState_GROUP_STATE_UNAVAILABLE {
			away[name]++
		}
	}
	for name, is := range here {
		if is && !led[name] && 2*away[name] >= copies[name] {
			return true
		}
	}
	return false
}
