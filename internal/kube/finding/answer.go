package finding

import (
	"cmp"
	"strings"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/finding"
)

// answer adds sheaf doctor's findings about a gateway's response. Each cause has one finding. If an object's finding
// already explains a finding about the response, the latter is left out, because the object's finding names a better
// next step. For example, the finding about a node that is down explains a silent shard.
func (l *look) answer() {
	if l.Answer == nil {
		return
	}
	facts := *l.Answer
	facts.Managed = true
	for _, f := range finding.Of(facts) {
		shard, ofShard := strings.CutPrefix(f.Where, "shard ")
		if !ofShard {
			_, shard, ofShard = strings.Cut(f.Where, " on shard ")
		}
		if l.isExplained(&f, shard, &facts) {
			continue
		}
		command := l.kubectl("describe recordstore %s", l.Store.Name)
		if ofShard {
			command = l.kubectl("logs %s", workload.ShardPod(shard))
			l.told[workload.ShardPod(shard)] = l.told[workload.ShardPod(shard)] || f.Severity != Note
			if f.Kind == finding.ShardSilent || f.Kind == finding.ShardState {
				l.absent[shard] = true
			}
		}
		f.Do = cmp.Or(f.Do, command)
		l.found = append(l.found, f)
	}
}

// isExplained reports whether an object already has a finding about the cause of f, a finding from a gateway's
// response. If something is not served because of that cause, the object's finding takes over f's severity, and f's
// description is appended to it. If the other copies of each group serve, the object's finding keeps its own severity.
func (l *look) isExplained(f *Finding, shard string, facts *finding.Facts) bool {
	n, ofShard := l.explained[shard]
	switch f.Kind {
	case finding.StoreProblem:
		return l.etcdWords != "" && strings.HasPrefix(f.What, l.etcdWords)
	case finding.NoShards:
		first, all := l.firstExplained()
		if all && len(l.Pools) > 0 {
			l.merge(first, f.Severity, f.What)
		}
		return all
	case finding.GroupNotMade:
		if l.domains != nil {
			l.merge(*l.domains, f.Severity, f.Where+": "+f.What)
		}
		return l.domains != nil
	case finding.ShardVersions:
		return l.paused
	case finding.DrainWaits, finding.ShardDrained:
		m, ofPool := l.pools[l.poolOf(shard)]
		return ofPool && finding.BySeverity(l.found[m].Severity, f.Severity) <= 0
	case finding.ShardLoads:
		return ofShard
	case finding.ShardSilent, finding.ShardState:
		if !l.saysWhy(shard, f.Kind, facts) {
			return false
		}
		if facts.IsNeeded(shard) {
			l.merge(n, f.Severity, f.What)
		}
		return true
	case finding.ShardProblem:
		return ofShard && l.found[n].Severity != Note && strings.Contains(l.found[n].What, f.What)
	}
	return false
}

// saysWhy reports whether the finding about a shard's Kubernetes object explains a finding of the given kind about the
// same shard. For ShardSilent, it must explain why the shard is silent; for ShardState, it must be about the state
// that the gateway reports. A note explains neither, because the shard may have failed after the operator wrote that
// the shard starts or loads. There is one exception: a parked shard is silent on purpose.
func (l *look) saysWhy(shard string, kind finding.Kind, facts *finding.Facts) bool {
	n, there := l.explained[shard]
	switch {
	case !there:
		return false
	case kind == finding.ShardSilent && l.states[shard] == v1alpha1.ShardParked:
		return true
	case l.found[n].Severity == Note:
		return false
	case kind == finding.ShardSilent:
		return true
	}
	for _, s := range facts.Shards {
		if s.GetName() == shard {
			return s.GetState().Word() == string(l.states[shard])
		}
	}
	return false
}

// isAbsent reports whether a warning or a problem explains why the copies on a shard are missing.
func (l *look) isAbsent(shard string) bool {
	n, there := l.explained[shard]
	return l.absent[shard] || there && l.found[n].Severity != Note
}

// firstExplained returns the index of the first finding about a shard. The result all is true if each shard has a
// finding that explains why the shard does not run. It is also true for a store without pools, and thus without
// shards.
func (l *look) firstExplained() (first int, all bool) {
	first = len(l.found)
	for i := range l.Pools {
		for _, s := range v1alpha1.ShardsOf(&l.Pools[i], l.Shards) {
			n, there := l.explained[s.Name]
			if !there {
				return 0, false
			}
			first = min(first, n)
		}
	}
	return first, len(l.Pools) == 0 || first < len(l.found)
}

// poolOf returns the name of a shard's pool, or "" if the pool is not known.
func (l *look) poolOf(shard string) string {
	for i := range l.Pools {
		for _, s := range v1alpha1.ShardsOf(&l.Pools[i], l.Shards) {
			if s.Name == shard {
				return l.Pools[i].Name
			}
		}
	}
	return ""
}
