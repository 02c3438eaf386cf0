package finding

import "time"

// Kind identifies a kind of finding, such as a full disk, by one word that scripts can compare. It determines the
// severity of a finding.
type Kind string

// These are the kinds of findings about a running store. Rules has a row for each of them.
const (
	StoreProblem     Kind = "StoreProblem"
	StoreLimit       Kind = "StoreLimit"
	NoShards         Kind = "NoShards"
	ShardVersions    Kind = "ShardVersions"
	ShardSilent      Kind = "ShardSilent"
	ShardState       Kind = "ShardState"
	ShardProblem     Kind = "ShardProblem"
	ShardLoads       Kind = "ShardLoads"
	DiskFull         Kind = "DiskFull"
	DiskNearlyFull   Kind = "DiskNearlyFull"
	SlowSyncs        Kind = "SlowSyncs"
	MemoryFull       Kind = "MemoryFull"
	MemoryNearlyFull Kind = "MemoryNearlyFull"
	ShardCordoned    Kind = "ShardCordoned"
	ShardDraining    Kind = "ShardDraining"
	DrainWaits       Kind = "DrainWaits"
	ShardDrained     Kind = "ShardDrained"
	GroupNotMade     Kind = "GroupNotMade"
	GroupLeaderless  Kind = "GroupLeaderless"
	GroupDamaged     Kind = "GroupDamaged"
	GroupFailed      Kind = "GroupFailed"
	GroupUnanswered  Kind = "GroupUnanswered"
	GroupReadOnly    Kind = "GroupReadOnly"
	CopyWaits        Kind = "CopyWaits"
	CopySilent       Kind = "CopySilent"
	CopyBehind       Kind = "CopyBehind"
	Superseded       Kind = "Superseded"
)

// These are the kinds of findings about a volume that no process serves. They describe the volume at the time of the
// check, so they have no Rule.
const (
	VolumeProblem Kind = "VolumeProblem"
	VolumeFailed  Kind = "VolumeFailed"
	VolumeDamaged Kind = "VolumeDamaged"
	VolumeTorn    Kind = "VolumeTorn"
	VolumeJoining Kind = "VolumeJoining"
)

// Rule describes a kind of finding: its cause, and how soon sheaf doctor reflects a change of the cause. Each run of
// sheaf doctor that starts at least Within after the cause has begun reports the finding. No run that starts at least
// Gone after the cause has ended reports it. Zero means that sheaf doctor itself examines the cause during the run.
// The times are upper bounds for a machine that is not overloaded. In addition, sheaf doctor waits up to 5 s for a
// shard that does not respond.
//
// The causes and reasons are quoted in docs/operations/troubleshooting.md, and a test compares the two.
type Rule struct {
	Kind         Kind
	Severity     Severity
	Cause        string
	Within, Gone time.Duration
	Why          string // why Within and Gone are this long
}

// These are the times that several rules share.
const (
	// etcdTold bounds the time until a gateway learns of a change in etcd. A watch reports the change immediately. If
	// the watch has failed, the gateway notices that within some seconds, and reads the keys again.
	etcdTold = 10 * time.Second
	// elected bounds the time until the leader of a group is known again: an election timeout (1 to 2 s), the
	// election, and the report of its result.
	elected = 10 * time.Second
	// guarded bounds the time until a shard notices a fault of its volume. A shard checks its volume every 2 s. It
	// reports a check that takes 10 s, and stops serving after two failed checks.
	guarded = 30 * time.Second
)

// Rules lists the kinds of findings about a running store, in the order of the constants.
var Rules = []Rule{
	{StoreProblem, Problem, "etcd does not answer the gateway, or a key in etcd cannot be used", etcdTold, etcdTold,
		"gateways watch etcd, and report that it is silent after 6 s"},
	{StoreLimit, Warning, "the store has nearly as many groups as it may have", etcdTold, etcdTold, "gateways watch etcd"},
	{NoShards, Problem, "no shard is registered or holds a group", etcdTold, etcdTold,
		"a registration ends 6 s after its last renewal"},
	{ShardVersions, Note, "shards run different versions", etcdTold, etcdTold, "each look asks the shards"},
	{ShardSilent, Problem, "a shard does not run, or does not answer the gateway", etcdTold, etcdTold,
		"each look asks the shards; a gateway tries to connect again every 2 s"},
	{ShardState, Problem, "a shard cannot serve its volume, or refuses to", guarded, guarded,
		"a shard looks at its volume every 2 s"},
	{ShardProblem, Problem, "a shard meets an error that a person has to end, or its disk does not answer", guarded,
		guarded, "a shard looks at its volume every 2 s, and reports a look that takes 10 s"},
	{ShardLoads, Note, "a shard loads its groups", 0, 0, "each look asks the shards"},
	{DiskFull, Problem, "less than 1 MiB is free above the reserve", 0, 0, "each look asks the file system"},
	{DiskNearlyFull, Warning, "less space is free than twice the reserve", 0, 0,
		"each look asks the file system"},
	{SlowSyncs, Warning, "a sync that took longer than half a second has ended", 0, slowSyncsAgo,
		"a slow sync remains a warning for ten minutes"},
	{MemoryFull, Problem, "index and resident data need more memory than the limit", 0, 0, "each look asks the shards"},
	{MemoryNearlyFull, Warning, "index and resident data need more than 90 % of the limit", 0, 0,
		"each look asks the shards"},
	{ShardCordoned, Note, "a shard is cordoned", etcdTold, etcdTold, "gateways watch etcd"},
	{ShardDraining, Note, "a shard is drained, and groups are left on it", etcdTold, etcdTold, "gateways watch etcd"},
	{DrainWaits, Warning, "a shard is drained, and no other shard can take its groups", etcdTold, etcdTold,
		"gateways watch etcd"},
	{ShardDrained, Note, "no group is left on a shard that is drained", etcdTold, etcdTold, "gateways watch etcd"},
	{GroupNotMade, Problem, "a group has no copy yet", etcdTold, etcdTold, "gateways watch etcd"},
	{GroupLeaderless, Problem, "no copy of a group leads", elected, elected, "an election takes 1 to 2 s, or is repeated"},
	{GroupDamaged, Problem, "a shard has found bad bytes of a group, by a read, a start or `sheaf group verify`", 0,
		elected, "it ends with the repair from another copy, or when the loss is accepted"},
	{GroupFailed, Problem, "a shard could not load a group, or its disk has lost it", 0, etcdTold,
		"it ends when the shard serves the group"},
	{GroupUnanswered, Problem, "a shard that runs does not answer for a group that etcd places on it", etcdTold, etcdTold,
		"gateways watch etcd, and each look asks the shards"},
	{GroupReadOnly, Problem, "the disk of a copy failed, or space, memory or files are short", 0, etcdTold,
		"it ends when the shard is started again, or the shortage is over"},
	{CopyWaits, Warning, "a copy that a shard is to make or load waits for something", 0, etcdTold,
		"each look asks the shards"},
	{CopySilent, Warning, "the leader of a group does not hear another copy, whose shard runs; a new copy has to have " +
		"its files", elected, elected, "a leader expects an answer in each election timeout"},
	{CopyBehind, Note, "a copy is too far behind to receive entries, and is copied again", 0, elected,
		"each look asks the shards"},
	{Superseded, Note, "more than half of a group's stored bytes, and more than 64 MiB, are superseded", 0, 0,
		"each look asks the shards"},
}

// ofVolumes holds the severities of the findings about volumes that no process serves.
var ofVolumes = map[Kind]Severity{
	VolumeProblem: Problem, VolumeFailed: Problem, VolumeDamaged: Problem, VolumeTorn: Note, VolumeJoining: Note,
}

// RuleOf returns the rule of a kind, and whether the kind has one.
func RuleOf(kind Kind) (Rule, bool) {
	for i := range Rules {
		if Rules[i].Kind == kind {
			return Rules[i], true
		}
	}
	return Rule{}, false
}

// severity returns the severity of a kind. An unknown kind is a problem, so that nothing is overlooked.
func (k Kind) severity() Severity {
	if rule, ok := RuleOf(k); ok {
		return rule.Severity
	}
	if severity, ok := ofVolumes[k]; ok {
		return severity
	}
	return Problem
}
