package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/group/transfer"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/survey"
	"sheaf.dev/sheaf/internal/shard/member"
)

// A replica is torn where what it acknowledged or voted for may be missing: its tail is damaged, or its manifest lost.
// It must not run as what it was (rule 7). So is one that has lost entries which its leader counts on. Either another
// member has, committed, all that it ever had: then it is installed anew in place and goes on. Or it is given up: etcd
// is told that it is gone, the leader removes it as soon as a majority is elsewhere, and a new replica takes its place.
// Its files stay until that one is complete.

// tailRefusals is how often the leader's files are not enough before a replica is given up: about 3 s. What the leader
// has of the replica's last entries is committed by then.
const tailRefusals = 6

// What became of torn replicas, as metrics tell it.
const (
	tailFound     = "found"
	tailInstalled = "installed"
	tailGivenUp   = "given_up"
)

// nudge has follow look again. It never blocks.
func (s *Shard) nudge() {
	select {
	case s.nudged <- struct{}{}:
	default:
	}
}

// forget takes a replica out of service that lacks entries which its leader counts on.
func (s *Shard) forget(ctx context.Context, sv *served, why error) {
	g := sv.group
	closed, err := s.pause(ctx, g, sv)
	if !closed {
		return // whoever closed it loads it again, or ends it
	}
	defer g.changing.Unlock()
	s.mu.Lock()
	s.happens(g, member.Forgot)
	s.noteTail(g, errors.Join(fmt.Errorf("%w: %w", group.ErrTailDamaged, why), err))
	s.mu.Unlock()
	s.logger.Error("a replica has forgotten what it acknowledged: was its disk set back?", "group", g.name, "error", why)
}

// replaceForgetful gives a replica up as soon as the others can replace it.
func (s *Shard) replaceForgetful(ctx context.Context, g *groupReplica) {
	for {
		state, wanted := s.stateOf(g)
		if !wanted {
			return // follow sees to it
		}
		if isReplaceable(state.Group, g.raftID) && s.isLed(ctx, state.Group) {
			s.mu.Lock()
			why := g.err
			s.mu.Unlock()
			s.giveUp(g, why)
			return
		}
		select {
		case <-time.After(installMax / 2):
		case <-ctx.Done():
			return
		}
	}
}

// mendTail installs a torn replica in place, or gives it up.
func (s *Shard) mendTail(g *groupReplica) {
	defer s.endFetch(g)
	s.mu.Lock()
	ctx, forgetful := g.fetch, g.phase == member.Forgetful
	s.mu.Unlock()
	if forgetful {
		s.replaceForgetful(ctx, g)
		return
	}
	what := "the damaged tail of group " + g.name
	refused := 0
	if !s.takeOver(ctx, g, what, func(state placement.Group, from string, err error) bool {
		if !errors.Is(err, transfer.ErrBehind) || from != state.Leader {
			return false
		}
		if refused++; refused < tailRefusals || !isReplaceable(state, g.raftID) || !s.isLed(ctx, state) {
			return false
		}
		s.giveUp(g, err)
		return true
	}) {
		return
	}
	s.mu.Lock()
	s.happens(g, member.Installed)
	s.mu.Unlock()
	s.metrics.tails.WithLabelValues(tailInstalled).Inc()
	s.logger.Warn("a replica with a damaged tail was installed anew: another copy holds all that it had", "group", g.name)
	s.loadOne(s.ctx, g, nil)
	s.mu.Lock()
	torn := g.phase.Torn()
	s.mu.Unlock()
	if torn { // the disk is bad: not again and again without a pause
		select {
		case <-time.After(installMax):
		case <-ctx.Done():
		}
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
func (s *Shard) isLed(ctx context.Context, state placement.Group) bool {
	address, known := s.neighbours.address(state.Leader)
	if !known {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	v, err := survey.VolumeOver(ctx, address, s.speaksTo(state.Leader))
	return err == nil && slices.ContainsFunc(v.Replicas, func(r placement.FoundReplica) bool { return r.UUID == state.UUID && r.Leader })
}

// giveUp notes that a replica is to be replaced.
func (s *Shard) giveUp(g *groupReplica, why error) {
	s.mu.Lock()
	s.happens(g, member.Abandoned)
	s.mu.Unlock()
	s.metrics.tails.WithLabelValues(tailGivenUp).Inc()
	s.logger.Error("a replica with a damaged tail is given up: its leader is to replace it, and its files stay until that is done",
		"group", g.name, "raft_id", g.raftID, "reason", why)
	s.nudge()
}

// confess tells etcd that replicas of a group of several copies are not here any more, or not whole, so that the leader
// replaces them. They never come back: a Raft id is not used again.
func (s *Shard) confess(ctx context.Context, state placement.Group) error {
	s.mu.Lock()
	g := s.groups[state.UUID]
	sound := uint64(0) // the one that is here, and well
	if g != nil && g.phase != member.Lost && g.phase != member.GivenUp {
		sound = g.raftID
	}
	s.mu.Unlock()
	state.Members = slices.Clone(state.Members)
	for i, m := range state.Members {
		if m.Shard == s.cfg.Name && m.VolumeUUID == s.volume.Superblock().Volume && (m.RaftID != sound || sound == 0) {
			s.logger.Error("the replica of a group is not on its volume, or not whole: it is to be replaced", "group", state.Name, "raft_id", m.RaftID)
			state.Members[i].VolumeUUID = uuid.Nil
		}
	}
	if _, err := s.cfg.Placement.PutGroup(ctx, state); err != nil {
		return fmt.Errorf("telling etcd that its replica here is gone: %w", err)
	}
	return nil
}
