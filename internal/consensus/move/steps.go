package move

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// record makes etcd list the members of the configuration. Besides these, etcd lists only learners that are about to
// be added.
func (d *decider) record() *Action {
	want := d.membersNow()
	if placement.SameSet(want, d.Members) {
		return nil
	}
	return &Action{Kind: RecordMembers, Members: want, Reason: "etcd learns who the members are"}
}

// membersNow lists the members in etcd's order, and appends those that are not in etcd.
func (d *decider) membersNow() []placement.Member {
	roles := map[uint64]placement.Role{}
	for _, id := range d.learners {
		roles[id] = placement.Learner
	}
	for _, id := range d.voters {
		roles[id] = placement.Voter
	}
	var out []placement.Member
	listed := map[uint64]bool{}
	for _, m := range d.Members {
		role, member := roles[m.RaftID]
		if listed[m.RaftID] || !member && !d.planned(m) {
			continue
		}
		if m.Shard == "" { // etcd has no shard for this member, but the leader may know it
			m = d.where[m.RaftID]
		}
		if member {
			m.Role = role
		}
		listed[m.RaftID] = true
		out = append(out, m)
	}
	for _, id := range slices.Sorted(maps.Keys(roles)) {
		if !listed[id] {
			m := d.where[id]
			m.Role = roles[id]
			out = append(out, m)
		}
	}
	return out
}

// planned reports whether m is a wanted learner that is in etcd, but not in the configuration yet.
func (d *decider) planned(m placement.Member) bool {
	if m.Role != placement.Learner || d.gone(m.RaftID) || !slices.Contains(d.Target, m.Shard) {
		return false
	}
	for _, id := range slices.Concat(d.voters, d.learners) {
		if d.where[id].Shard == m.Shard && !d.gone(id) {
			return false
		}
	}
	first := slices.IndexFunc(d.Members, func(other placement.Member) bool {
		return other.Shard == m.Shard && other.Role == placement.Learner && !d.inConf(other.RaftID) && !d.gone(other.RaftID)
	})
	return d.Members[first].RaftID == m.RaftID // if several learners are planned for one shard, only the first one counts
}

func (d *decider) inConf(id uint64) bool {
	return slices.Contains(d.voters, id) || slices.Contains(d.learners, id)
}

// leaveJoint waits until Raft has left the joint configuration, which Raft does automatically.
func (d *decider) leaveJoint() *Action {
	if len(d.Conf.GetVotersOutgoing()) == 0 {
		return nil
	}
	return wait("the voters of the old and of the new membership still agree on the change")
}

// transferTarget returns a voter, other than this leader, that has caught up and may become leader. Among several, it
// prefers the one whose shard the target lists first. If none is on a shard of the target, it returns any of them. It
// returns 0 if there is none at all.
func (d *decider) transferTarget() uint64 {
	for _, shard := range d.Target {
		if id := d.holder[shard]; id != 0 && d.mayLead(id) {
			return id
		}
	}
	for _, id := range d.voters {
		if d.mayLead(id) {
			return id
		}
	}
	return 0
}

func (d *decider) mayLead(id uint64) bool {
	return id != d.Self && d.well(id)
}

func (d *decider) transfer(to uint64, why string) *Action {
	return &Action{Kind: TransferLeader, ID: to, Reason: fmt.Sprintf("%s hands the lead to %s: %s", d.name(d.Self),
		d.name(to), why)}
}

// dropLearner removes a learner that is no longer wanted. That is the case if the target has changed, if the
// learner's replica is gone, or if its shard has a voter.
func (d *decider) dropLearner() *Action {
	taken := map[string]bool{}
	for _, id := range d.learners {
		shard := d.where[id].Shard
		why := ""
		switch {
		case d.gone(id):
			why = "is gone with its volume"
		case len(d.Target) > 0 && !slices.Contains(d.Target, shard):
			why = "is not wanted any more"
		case d.holder[shard] != 0 || taken[shard]:
			why = "is there twice"
		}
		if why != "" {
			return &Action{Kind: RemoveMember, ID: id, Reason: fmt.Sprintf("the learner on %s %s", d.name(id), why)}
		}
		taken[shard] = true
	}
	return nil
}

// dropGone removes a voter that is not coming back, if the other voters hold all data. A voter whose location is merely
// unknown may return with its data. It remains until another copy takes its place, unless there are more voters than
// wanted.
func (d *decider) dropGone() *Action {
	for _, id := range d.voters {
		if !d.gone(id) || d.where[id].Shard == "" && (len(d.Target) == 0 || len(d.voters) <= len(d.Target)) {
			continue
		}
		rest := without(d.voters, id)
		if d.canCommit(rest) {
			return &Action{Kind: RemoveMember, ID: id, Reason: fmt.Sprintf("the replica on %s is gone with its volume",
				d.name(id))}
		}
		return wait("the replica on %s is gone with its volume, and %d of %d voters are caught up: needed are %d",
			d.name(id), d.countWell(d.voters), len(d.voters), quorum(len(d.voters)))
	}
	return nil
}

// missing returns the wanted shards that have neither a voter nor a learner.
func (d *decider) missing() []string {
	var out []string
	for _, shard := range d.Target {
		if d.holder[shard] == 0 && !slices.ContainsFunc(d.learners, func(id uint64) bool {
			return d.where[id].Shard == shard
		}) {
			out = append(out, shard)
		}
	}
	return out
}

// recordLearners writes one learner to etcd before the learner is proposed, so that the learner's shard expects it.
func (d *decider) recordLearners() *Action {
	open := len(d.learners)
	for _, m := range d.Members {
		if !d.inConf(m.RaftID) {
			open++
		}
	}
	for _, shard := range d.missing() {
		now := d.Shards[shard]
		switch {
		case slices.ContainsFunc(d.Members, func(m placement.Member) bool { return m.Shard == shard && !d.inConf(m.RaftID) }):
			// etcd already lists a learner on this shard.
		case !now.Alive || now.Volume == uuid.Nil:
			d.waiting = fmt.Sprintf("shard %s, which is to get a copy, is not there", shard)
		case d.LearnersMax >= 0 && open >= d.LearnersMax:
			d.waiting = fmt.Sprintf("%d groups or copies are moving: shard %s gets its copy later", open, shard)
		case d.FreshID == 0 || d.where[d.FreshID].RaftID != 0:
			d.waiting = "the Raft id for a new replica is taken: another one is needed"
		default:
			m := placement.Member{Shard: shard, VolumeUUID: now.Volume, RaftID: d.FreshID, Role: placement.Learner}
			return &Action{
				Kind: RecordMembers, Members: append(slices.Clone(d.Members), m), ID: d.FreshID,
				Reason: fmt.Sprintf("shard %s is to get a copy", shard),
			}
		}
	}
	return nil
}

// addLearner proposes a learner that is in etcd.
func (d *decider) addLearner() *Action {
	for _, m := range d.Members {
		if !d.inConf(m.RaftID) {
			return &Action{Kind: AddLearner, ID: m.RaftID, Reason: fmt.Sprintf("shard %s is to be caught up", m.Shard)}
		}
	}
	return nil
}

// extras returns the voters that the target does not want, in the order in which they may leave. Unhealthy voters (see
// well) come first, then those in the domain of another voter, then the others, and finally this leader.
func (d *decider) extras() []uint64 {
	var out []uint64
	for _, id := range d.voters {
		if d.holder[d.where[id].Shard] != id {
			out = append(out, id)
		}
	}
	rank := func(id uint64) int {
		switch {
		case id == d.Self:
			return 3
		case !d.well(id):
			return 0
		case d.shared(without(d.voters, id)) < d.shared(d.voters):
			return 1
		}
		return 2
	}
	slices.SortStableFunc(out, func(a, b uint64) int { return rank(a) - rank(b) })
	return out
}

// shrink removes a voter if there are more voters than wanted copies.
func (d *decider) shrink() *Action {
	if len(d.Target) == 0 || len(d.voters) <= len(d.Target) {
		return nil
	}
	extras := d.extras()
	if len(extras) == 0 {
		return nil
	}
	out := extras[0]
	if !d.canCommit(without(d.voters, out)) {
		return wait("%s is to leave, and too few of the other voters are caught up", d.name(out))
	}
	if out == d.Self {
		return d.handOver()
	}
	return &Action{Kind: RemoveMember, ID: out, Reason: fmt.Sprintf("%s is not wanted any more", d.name(out))}
}

// handOver transfers the leadership before this replica leaves.
func (d *decider) handOver() *Action {
	if to := d.transferTarget(); to != 0 {
		return d.transfer(to, "it is to leave")
	}
	return wait("%s is to leave, and nobody can take the lead over", d.name(d.Self))
}

// ready returns the learners on wanted shards that have caught up.
func (d *decider) ready() []uint64 {
	return slices.DeleteFunc(slices.Clone(d.learners), func(id uint64) bool {
		return !slices.Contains(d.Target, d.where[id].Shard) || !d.well(id)
	})
}

// replace lets a learner take the place of a voter, preferably of a leaving voter in the learner's own failure domain.
func (d *decider) replace() *Action {
	extras, ready := d.extras(), d.ready()
	if len(extras) == 0 || len(ready) == 0 || len(d.voters) < len(d.Target) {
		return nil
	}
	best := d.bestSwap(extras, ready)
	out, in := best.out, best.in
	if out == d.Self && len(d.voters) > 1 {
		if best.shared == d.shared(d.voters) && d.coming() {
			// This leader is still sending copies to other shards. If another member became leader, those transfers would
			// start again from the beginning.
			d.waiting = fmt.Sprintf("%s is to take the place of %s, which leads and leaves last", d.name(in), d.name(out))
			return nil
		}
		return d.handOver()
	}
	// The leader holds the only copy. The group temporarily gets a second voter, to which this leader can then transfer
	// the leadership.
	if out == d.Self {
		return &Action{Kind: Promote, IDs: []uint64{in}, Reason: fmt.Sprintf("%s is to take over from %s", d.name(in),
			d.name(out))}
	}
	if !d.canCommit(append(without(d.voters, out), in)) {
		return wait("%s is to take the place of %s, and too few voters are caught up", d.name(in), d.name(out))
	}
	return &Action{
		Kind: Replace, ID: out, IDs: []uint64{in},
		Reason: fmt.Sprintf("%s takes the place of %s", d.name(in), d.name(out)),
	}
}

// grow promotes learners if there are fewer voters than wanted copies. It promotes all of them in one change, because
// stopping at an even number of voters would be useless. For example, four voters tolerate the loss of only one
// voter, as three do. grow prefers learners in separate domains, but does not wait for them while copies are missing.
func (d *decider) grow() *Action {
	ready := d.ready()
	need := len(d.Target) - len(d.voters)
	if need <= 0 || len(ready) == 0 {
		return nil
	}
	coming := 0 // learners on live shards; earlier steps have added all learners that can be added now
	for _, id := range d.learners {
		if d.Shards[d.where[id].Shard].Alive {
			coming++
		}
	}
	if len(ready) < min(need, coming) {
		return nil
	}
	in := d.apart(ready)[:min(need, len(ready))]
	if !d.canCommit(slices.Concat(d.voters, in)) {
		return wait("%d learners are to become voters, and too few voters are caught up", len(in))
	}
	return &Action{Kind: Promote, IDs: in, Reason: fmt.Sprintf("%d learners are caught up", len(in))}
}

// lead transfers the leadership to the shard that the target lists first.
func (d *decider) lead() *Action {
	if len(d.Target) == 0 {
		return nil
	}
	if to := d.holder[d.Target[0]]; to != 0 && d.mayLead(to) {
		return d.transfer(to, "the target wants it so")
	}
	return nil
}

// atTarget returns an action with Done set if the group is at its target. Otherwise the action says why the group
// waits.
func (d *decider) atTarget() *Action {
	if len(d.Target) == 0 {
		return wait("no target is set")
	}
	for _, id := range d.learners {
		if !d.well(id) {
			return wait("%s is being caught up", d.name(id))
		}
	}
	if d.waiting != "" {
		return wait("%s", d.waiting)
	}
	for _, shard := range d.Target {
		if d.holder[shard] == 0 {
			return wait("shard %s is to get a copy", shard)
		}
	}
	if len(d.learners) > 0 || len(d.voters) != len(d.Target) {
		return wait("%d voters and %d learners, wanted are %d copies", len(d.voters), len(d.learners), len(d.Target))
	}
	return &Action{Done: true, Reason: "the group is where it is wanted"}
}
