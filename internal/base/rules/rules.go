// Package rules names the safety rules that a test can switch off, to prove that a test would notice a violation.
//
// Production code calls Off.Keeps at each place where a rule decides what happens. The Off of a program is always the
// zero value, with which every rule is kept, because the linter forbids programs to import this package. A rule belongs
// here if a test can notice its absence. TestEveryRuleIsNeeded in internal/test/sim and TestEveryRuleOfShardsIsNeeded
// in internal/shard switch each rule off, and fail if no seed finds a violation. For each rule that is an addition to
// Raft, docs/raft.md says which code enforces it, and why it is needed.
package rules

// Off is a set of rules that are switched off. The zero value keeps all rules.
type Off uint32

// Keeps reports whether a rule is enforced, that is, not switched off.
func (o Off) Keeps(rule Off) bool { return o&rule == 0 }

// These are the rules. Numbers such as "rule 1" are those of the safety rules in docs/architecture.md. Each comment
// says what happens when the rule is switched off, and which case of TestEveryRuleIsNeeded ("the simulation") or of
// TestEveryRuleOfShardsIsNeeded ("the exploration") finds the violation.
const (
	// Sync is the rule that an appended entry is synced before it counts as stored (rule 1). Without it, a power cut
	// loses acknowledged writes. In both the simulation and the exploration, the case "acknowledged means synced" finds
	// this.
	Sync Off = 1 << iota
	// Promise is the rule that a vote or a response to a leader is sent only when the state that it promises has been
	// synced. Without it, a power cut makes a member forget an entry that a leader counted as stored, and a different
	// entry is committed at the same index. In the simulation, the case "a promise waits for the sync" finds this.
	Promise
	// Vote is the rule that a vote survives a restart. Without it, one member votes for two leaders of a term. In the
	// simulation, the case "a vote is remembered" finds this.
	Vote
	// Read is the rule that a read without a lease asks a majority whether this replica still leads. Without it, a
	// superseded leader returns old data. In the simulation, the case "a read asks the majority" finds this.
	Read
	// Decline is the rule that a replica asks a majority whether it still leads before it refuses a write because of a
	// failed condition. Without it, a superseded leader refuses a write because of a version that is not the newest. In
	// the simulation, the case "a refusal asks the majority" finds this.
	Decline
	// Question is the rule that a majority's confirmation counts only for the leadership check that requested it.
	// Without it, a late response to an earlier check releases a read too soon. In the simulation, the case "an answer
	// belongs to its question" finds this.
	Question
	// Requests is the rule that the request ids of all applied entries are remembered, including entries written by
	// earlier leaders or before a restart. Without it, a write that is repeated after a failover is applied twice. In
	// the simulation, the case "requests are remembered over a failover" finds this.
	Requests
	// Apply is the rule that only committed entries become visible (rule 2). Without it, replicas apply different
	// entries at one index. In the simulation, the case "only what is committed is visible" finds this.
	Apply
	// Serve is the rule that a leader serves only when it has applied an entry of its own term. Without it, the leader
	// does not see what its predecessors committed. In the simulation, the case "a leader serves what its predecessors
	// committed" finds this.
	Serve
	// Lease is the rule that a lease ends when its time has passed. Without it, a partitioned leader serves reads
	// indefinitely. In the simulation, the case "a lease ends" finds this.
	Lease
	// LeaseVote is the rule that a replica which has just started does not vote until the time of a lease has passed,
	// because it may have promised a lease before it was restarted. Without it, another leader is elected while a lease
	// runs. In the simulation, the case "who may have promised a lease gives no vote" finds this.
	LeaseVote
	// LeaseTransfer is the rule that a leader which transfers the leadership has no lease for the rest of its term.
	// Without it, the member that received TimeoutNow becomes leader while the lease still runs. In the simulation, the
	// cases "a lead that is handed over has no lease" and "nor has one whose handing over was given up" find this.
	LeaseTransfer
	// Damage is the rule that a replica whose log is damaged does not lead (rule 4). Without it, entries that such a
	// leader cannot read are missing for all clients. In the simulation, the case "who is damaged does not come to lead"
	// finds this.
	Damage
	// Clock is the rule that request ids age by a monotonic clock. Without it, after the machine's clock is set, a
	// repeated write is applied twice. In the simulation, the case "requests are remembered whatever the clock says"
	// finds this.
	Clock
	// Forget is the rule that the request id of a write is remembered even if the write made no entry, because a
	// condition refused it or there was nothing to delete. Without it, a late duplicate of the write is applied after
	// the record has changed. In the simulation, the case "a write that did nothing is remembered" finds this.
	Forget
	// Reuse is the rule that a second, different write with the same request id is not taken for a repetition of the
	// first. Without it, a write is acknowledged that was never applied. In the simulation, the case "a request id is
	// that of one write" finds this.
	Reuse
	// Silence is the rule that a follower forgets its leader only when the follower itself has received no message from
	// the leader for an election timeout, regardless of what others report about the leader's shard. Without it, the
	// follower votes for another member while the leader's lease runs. In the simulation, the case "who has answered its
	// leader forgets it only when that is silent" finds this.
	Silence
	// Tombstones is the rule that compaction keeps deletes and the request ids of superseded writes while a request may
	// still be repeated. Without it, a repeated write is applied twice. In the simulation, the cases "a delete is kept
	// while it may be repeated" and "a request is remembered when its write is compacted away" find this.
	Tombstones
	// JournalSpace is the rule that space in the journal is not reused until the segments are synced. Without it, a
	// power cut loses acknowledged writes. In the simulation, the case "the journal's room is free when the segments are
	// synced" finds this.
	JournalSpace
	// DamagedScan is the rule that a scan leaves out records which an entry in a damaged range may have superseded (rule
	// 4). Without it, the scan returns old versions as current. In the exploration, the case "a scan of a damaged group
	// leaves out what may be old" finds this.
	DamagedScan
	// Remnant is the rule that a learner's folder is replaced if it is incomplete because the process was killed.
	// Without it, the incomplete folder counts as a replica, and the learner never catches up. In the exploration, the
	// case "what a kill leaves of a learner's folder is replaced" finds this.
	Remnant
	// Stop is the rule that work which failed because the shard was stopping does not count as done. Without it, the
	// shard never finishes stopping. In the exploration, the case "a stop ends the beginning of a replica that fails"
	// finds this.
	Stop
	// Upload is the rule that a blob is kept if the outcome of its upload is unknown. Without it, an entry that is
	// applied later refers to a missing blob. In the exploration, the case "the blob of an upload of unknown outcome
	// stays" finds this.
	Upload
)
