package finding

import (
	"cmp"
	"strings"

	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/finding"
)

// answer adds what sheaf doctor finds in a gateway's answer. It leaves out a finding about a shard if the Kubernetes
// objects already explain it: a node that is down explains a silent shard, and has a better next step.
func (l *look) answer() {
	if l.Answer == nil {
		return
	}
	facts := *l.Answer
	facts.Managed = true
	for _, f := range finding.Of(facts) {
		shard, ofShard := strings.CutPrefix(f.Where, "shard ")
		if worst, explained := l.explained[shard]; ofShard && explained &&
			(finding.BySeverity(worst, f.Severity) <= 0 || facts.IsSilent(shard) && !facts.IsNeeded(shard)) {
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
