package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/base/backoff"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// A replica is torn where what it acknowledged or voted for may be missing: its tail is damaged, or its manifest lost.
// It must not run as what it was (rule 7). So is one that has lost entries which its leader counts on. Either another
// member has, committed, all that it ever had: then it is installed anew in place and goes on. Or it is given up: etcd
// is told that it is gone, the leader removes it as soon as a majority is elsewhere, and a new replica takes its place.
// Its files stay until that one is complete.

// tailRefusals is how often the leader's files are not enough before a replica is given up: about 3 s. What the leader
// has of the replica's last entries is committed by then.
const tailRefusals = 6

// surveyTime is for the answer of a leader that is asked whether it leads.
const surveyTime = 5 * time.Second

// What became of torn replicas, as metrics tell it.
const (
	tailFound     = "found"
	tailInstalled = "installed"
	tailGivenUp   = "given_up"
)

// replaceForgetful gives a replica up as soon as the others can replace it.
func (i *installer) replaceForgetful(ctx context.Context, g *groupReplica) {
	for {
		state, wanted := i.follower.StateOf(g)
		if !wanted {
			return // the follower sees to it
		}
		if isReplaceable(state.Group, g.RaftID) && i.isLed(ctx, state.Group) {
			i.mu.Lock()
			why := g.Err
			i.mu.Unlock()
			i.giveUp(g, why)
			return
		}
		if !backoff.Sleep(ctx, installPauses.Most/2) {
			return
		}
	}
}

// reinstall installs a torn replica in place, or gives it up.
func (i *installer) reinstall(g *groupReplica) {
	defer i.endFetch(g)
	i.mu.Lock()
	ctx, forgetful := g.Fetch, g.Phase == member.Forgetful
	i.mu.Unlock()
	if forgetful {
		i.replaceForgetful(ctx, g)
		return
	}
	what := "the damaged tail of group " + g.Name
	refused := 0
	if !i.takeOver(ctx, g, what, func(state placement.Group, from string, err error) bool {
		if !errors.Is(err, transfer.ErrBehind) || from != state.Leader {
			return false
		}
		if refused++; refused < tailRefusals || !isReplaceable(state, g.RaftID) || !i.isLed(ctx, state) {
			return false
		}
		i.giveUp(g, err)
		return true
	}) {
		return
	}
	i.happens(g, member.Installed)
	i.tails.WithLabelValues(tailInstalled).Inc()
	i.logger.Warn("a replica with a damaged tail was installed anew: another copy holds all that it had", "group", g.Name)
	i.loading.loadOne(i.ctx, g, nil)
	i.mu.Lock()
	torn := g.Phase.LacksEntries()
	i.mu.Unlock()
	if torn {
		backoff.Sleep(ctx, installPauses.Most) // the disk is bad: not again and again without a pause
	}
}

// isReplaceable tells whether the others can remove a member while it is missing: a learner always, a voter where there
// are three and more.
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

// isLed asks the shard that etcd names as a group's leader whether it leads. Then a majority is elsewhere: who is not
// heard by one steps down.
func (i *installer) isLed(ctx context.Context, state placement.Group) bool {
	address, known := i.follower.Address(state.Leader)
	if !known {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	v, err := i.follower.Ask(ctx, placement.Shard{Name: state.Leader, Address: address})
	return err == nil && slices.ContainsFunc(v.Replicas, func(r placement.FoundReplica) bool {
		return r.UUID == state.UUID && r.Leader
	})
}

// giveUp notes that a replica is to be replaced.
func (i *installer) giveUp(g *groupReplica, why error) {
	i.happens(g, member.Abandoned)
	i.tails.WithLabelValues(tailGivenUp).Inc()
	i.logger.Error(
		"a replica with a damaged tail is given up: its leader is to replace it, and its files stay until that is done",
		"group", g.Name, "raft_id", g.RaftID, "reason", why)
	i.follower.Nudge()
}

// withdraw takes a replica out of service that lacks entries which its leader counts on.
func (i *installer) withdraw(ctx context.Context, sv *served, why error) {
	g := sv.group
	closed, err := i.pause(ctx, g, sv)
	if !closed {
		return // whoever closed it loads it again, or ends it
	}
	defer g.changing.Unlock()
	i.mu.Lock()
	g.Happens(member.Forgot, i.logger)
	i.loading.noteTail(g, errors.Join(fmt.Errorf("%w: %w", group.ErrTailDamaged, why), err))
	i.mu.Unlock()
	i.logger.Error("a replica has forgotten what it acknowledged: was its disk set back?", "group", g.Name, "error", why)
}
