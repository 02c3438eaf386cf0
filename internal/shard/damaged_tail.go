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
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// A replica has a damaged tail if data that it acknowledged or voted for may be missing, because bytes at the end of
// its log are bad or its manifest is lost. It must not run under its identity (rule 7). The same holds for a replica
// that has lost entries on which its leader relies. If another member has everything that the replica ever had, and has
// it committed, the replica is reinstalled in place and continues. Otherwise it is given up: its loss is reported to
// etcd, the leader removes it as soon as a majority is elsewhere, and a new replica takes its place. Its files stay
// until the new replica is complete.

// tailRefusals is how many times the leader's files may be insufficient before a replica is given up. That takes
// about 3 s. By then, those of the replica's last entries that the leader has are committed.
const tailRefusals = 6

// surveyTime bounds the wait for the answer of a shard that is asked whether it leads.
const surveyTime = 5 * time.Second

// These are the outcomes for replicas with a damaged tail, as metric labels.
const (
	tailFound     = "found"
	tailInstalled = "installed"
	tailGivenUp   = "given_up"
)

// replaceLacking gives up a replica as soon as the others can replace it.
func (i *installer) replaceLacking(ctx context.Context, g *groupReplica) {
	for {
		state, wanted := i.watcher.StateOf(g)
		if !wanted {
			return // the watcher handles it
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

// reinstall installs a replica with a damaged tail in place, or gives it up.
func (i *installer) reinstall(g *groupReplica) {
	defer i.endFetch(g)
	i.mu.Lock()
	ctx, forgetful := g.Fetch, g.Phase == member.MissingEntries
	i.mu.Unlock()
	if forgetful {
		i.replaceLacking(ctx, g)
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
	i.logger.Warn("a replica with a damaged tail was installed again: another copy holds all that it had", "group", g.Name)
	i.loading.loadOne(i.ctx, g, nil)
	i.mu.Lock()
	torn := g.Phase.MissingEntries()
	i.mu.Unlock()
	if torn {
		backoff.Sleep(ctx, installPauses.Most) // the disk is bad: pause between attempts
	}
}

// isReplaceable reports whether the others can remove a member while it is missing: a learner always, a voter if there
// are three or more.
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

// isLed asks the shard that etcd names as a group's leader whether it leads. If it does, a majority is
// elsewhere, because a leader that does not hear a majority steps down.
func (i *installer) isLed(ctx context.Context, state placement.Group) bool {
	address, known := i.watcher.Address(state.Leader)
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

// giveUp marks a replica for replacement.
func (i *installer) giveUp(g *groupReplica, why error) {
	i.happens(g, member.Abandoned)
	i.tails.WithLabelValues(tailGivenUp).Inc()
	i.logger.Error(
		"a replica with a damaged tail is given up: its leader is to replace it, and its files stay until that is done",
		"group", g.Name, "raft_id", g.RaftID, "reason", why)
	i.watcher.Nudge()
}

// withdraw takes a replica out of service if it lacks entries on which its leader relies.
func (i *installer) withdraw(ctx context.Context, sv *served, why error) {
	g := sv.group
	closed, err := i.pause(ctx, g, sv)
	if !closed {
		return // the code that closed it loads it again, or ends it
	}
	defer g.changing.Unlock()
	i.mu.Lock()
	g.Happens(member.Forgot, i.logger)
	i.loading.noteTail(g, errors.Join(fmt.Errorf("%w: %w", group.ErrTailDamaged, why), err))
	i.mu.Unlock()
	i.logger.Error("a replica has forgotten what it acknowledged: was its disk set back?", "group", g.Name, "error", why)
}
