package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// A replica has a damaged tail if the end of its log is bad or its manifest is lost, so that entries that it has
// acknowledged or a vote that it has cast may be missing. Such a replica must not run under its Raft id (rule 7). The
// same holds if it lacks entries on which its leader relies. If another member has committed everything that the
// replica ever had, the replica is installed again in the same place, and continues. Otherwise it is given up: its
// loss is reported to etcd, the leader removes it as soon as the other members form a majority, and a new replica
// takes its place. The files of the old replica are kept until the new one is complete.

// tailRefusals is the number of times that the files from the leader may lack committed entries before the replica is
// given up. The attempts take about 3 s in total. In this time, the leader can commit the replica's last entries, as
// far as it has them itself.
const tailRefusals = 6

// surveyTime limits how long to wait for a shard's answer to the question whether it leads a group.
const surveyTime = 5 * time.Second

// These are the outcomes for replicas with a damaged tail. They are the values of a metric's label.
const (
	tailFound     = "found"
	tailInstalled = "installed"
	tailGivenUp   = "given_up"
)

// replaceLacking gives up a replica that lacks entries, as soon as the other members are able to replace it.
func (i *installer) replaceLacking(ctx context.Context, g *replicas.Replica) {
	for {
		state, wanted := i.replicas.GroupOf(g)
		if !wanted {
			return // the watcher closes a replica that is no longer wanted
		}
		if isReplaceable(state.Group, g.State().RaftID) && i.isLed(ctx, state.Group) {
			i.giveUp(g, g.State().Err)
			return
		}
		if !backoff.Sleep(ctx, installPauses.Most/2) {
			return
		}
	}
}

// reinstall installs a replica with a damaged tail again in the same place, or gives it up.
func (i *installer) reinstall(g *replicas.Replica) {
	defer g.EndFetch()
	ctx := g.Fetch()
	if g.State().Phase == member.MissingEntries {
		i.replaceLacking(ctx, g)
		return
	}
	what := "the damaged tail of group " + g.Name
	refused := 0
	if !i.takeOver(ctx, g, what, func(state placement.Group, from string, err error) bool {
		if !errors.Is(err, transfer.ErrBehind) || from != state.Leader {
			return false
		}
		if refused++; refused < tailRefusals || !isReplaceable(state, g.State().RaftID) || !i.isLed(ctx, state) {
			return false
		}
		i.giveUp(g, err)
		return true
	}) {
		return
	}
	g.Happens(member.Installed)
	i.tails.WithLabelValues(tailInstalled).Inc()
	i.logger.Warn("a replica with a damaged tail was installed again: another copy holds all that it had", "group", g.Name)
	i.loading.Load(i.ctx, g)
	if g.State().Phase.MissingEntries() {
		backoff.Sleep(ctx, installPauses.Most) // pauses before the next attempt, because the disk is bad
	}
}

// isReplaceable reports whether the other members are able to remove a lost member. They can always remove a learner.
// They can remove a voter only if the group has at least three voters.
func isReplaceable(state placement.Group, raftID uint64) bool {
	voters := 0
	role := placement.Voter
	for _, m := range state.Members {
		if m.Role == placement.Voter {
			voters++
		}
		if m.RaftID == raftID {
			role = m.Role
		}
	}
	return role != placement.Voter || voters >= 3
}

// isLed finds out whether a group has a leader, by asking the shard that leads it according to etcd. If that shard
// says that it leads, the other members form a majority, because a leader steps down if no majority responds to it.
func (i *installer) isLed(ctx context.Context, state placement.Group) bool {
	address, known := i.replicas.Address(state.Leader)
	if !known {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	v, err := i.watcher.Ask(ctx, placement.Shard{Name: state.Leader, Address: address})
	return err == nil && slices.ContainsFunc(v.Replicas, func(r rescue.FoundReplica) bool {
		return r.UUID == state.UUID && r.Leader
	})
}

// giveUp abandons a replica, so that the group's leader replaces it.
func (i *installer) giveUp(g *replicas.Replica, why error) {
	g.Happens(member.Abandoned)
	i.tails.WithLabelValues(tailGivenUp).Inc()
	i.logger.Error(
		"a replica with a damaged tail is given up: its leader is to replace it, and its files stay until that is done",
		"group", g.Name, "raft_id", g.State().RaftID, "reason", why)
	i.replicas.Wake()
}

// withdraw takes a replica out of service because it lacks entries on which its leader relies.
func (i *installer) withdraw(ctx context.Context, sv *replicas.Served, why error) {
	g := sv.Group
	closed, err := i.pause(ctx, g, sv)
	if !closed {
		return // another change has taken the replica out of service first
	}
	defer g.EndChange()
	g.NoteMissing(errors.Join(fmt.Errorf("%w: %w", group.ErrTailDamaged, why), err))
	i.tails.WithLabelValues(tailFound).Inc()
	i.logger.Error("a replica has forgotten what it acknowledged: was its disk set back?", "group", g.Name, "error", why)
}
