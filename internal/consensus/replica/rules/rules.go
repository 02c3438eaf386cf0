// Package rules names the safety rules of a replica that a test can switch off, to prove that the test would notice a
// violation.
//
// Production code calls Off.Keeps where a rule decides. Its Off is always the zero value, with which every rule is
// kept. A rule belongs here if a simulation can notice its absence. TestEveryRuleIsNeeded in internal/test/sim
// switches each rule off, and fails if no seed finds a violation. docs/raft.md says which code keeps a rule that is
// an addition to Raft, and why the rule is needed.
package rules

// Off is a set of rules that are switched off. The zero value keeps all rules.
type Off uint32

// Keeps reports whether a rule is kept.
func (o Off) Keeps(rule Off) bool { return o&rule == 0 }

// These are the rules. Each comment says what happens when the rule is switched off, and which case of
// TestEveryRuleIsNeeded finds the violation.
const (
	// Sync: what was appended is synced before it counts (rule 1). Off: a power cut takes acknowledged writes.
	// Found by "acknowledged means synced", and by TestEveryRuleOfShardsIsNeeded in internal/shard.
	Sync Off = 1 << iota
	// Promise: votes and answers to a leader wait for the sync of what they promise. Off: a power cut makes a member
	// forget an entry that a leader counted as stored, and another entry is committed in the place of that entry.
	// Found by "a promise waits for the sync".
	Promise
	// Vote: a vote survives a restart. Off: one member votes for two leaders of a term. Found by "a vote is
	// remembered".
	Vote
	// Read: a read without a lease asks a majority whether this replica still leads. Off: a superseded leader answers
	// with old data. Found by "a read asks the majority".
	Read
	// Decline: a refusal by a condition also asks a majority. Off: a superseded leader refuses a write because of a
	// version that is not the newest. Found by "a refusal asks the majority".
	Decline
	// Question: an answer of the majority belongs to the question that was asked. Off: a late answer to an earlier
	// question releases a read too soon. Found by "an answer belongs to its question".
	Question
	// Requests: the request ids of all applied entries are remembered, including entries of earlier leaders and from
	// before a start. Off: a write that is repeated after a failover is done twice. Found by "requests are remembered
	// over a failover".
	Requests
	// Apply: only committed entries become visible (rule 2). Off: replicas apply different entries at one index.
	// Found by "only what is committed is visible".
	Apply
	// Serve: a leader serves only when it has applied an entry of its own term. Off: the leader does not see what its
	// predecessors committed. Found by "a leader serves what its predecessors committed".
	Serve
	// Lease: a lease ends by the clock. Off: a partitioned leader answers reads for ever. Found by "a lease ends".
	Lease
	// LeaseVote: a replica that has just started gives no vote for as long as a lease lasts, because it may have
	// promised a lease. Off: another leader is elected while a lease runs. Found by "who may have promised a lease
	// gives no vote".
	LeaseVote
	// LeaseTransfer: a leader that transfers the leadership has no lease for the rest of its term. Off: the member
	// that was asked to campaign leads while the lease runs. Found by "a lead that is handed over has no lease" and
	// "nor has one whose handing over was given up".
	LeaseTransfer
	// Damage: a replica whose log is damaged does not lead (rule 4). Off: entries that it cannot read are missing for
	// all clients. Found by "who is damaged does not come to lead".
	Damage
	// Clock: request ids age by a monotonic clock. Off: after the machine's clock is set, a repeated write is done
	// twice. Found by "requests are remembered whatever the clock says".
	Clock
	// Forget: a write that made no entry, because a condition refused it or there was nothing to delete, is
	// remembered too. Off: a late duplicate of the write is done after the record has changed. Found by "a write that
	// did nothing is remembered".
	Forget
	// Reuse: a request id answers only for its own write. Off: a write is acknowledged that was never done. Found by
	// "a request id is that of one write".
	Reuse
	// Silence: a follower forgets its leader only when the follower itself has not heard the leader for an election
	// timeout, regardless of reports about the leader's shard. Off: the follower votes for another member while the
	// leader's lease runs. Found by "who has answered its leader forgets it only when that is silent".
	Silence
)
