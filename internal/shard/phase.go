package shard

import (
	"context"
	"errors"
	"fmt"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/shard/member"
)

// loadEnded notes how a load went. What was decided of the replica while it ran stays. Called with mu held.
func (s *Shard) loadEnded(g *groupReplica, err error) {
	if g.Phase == member.Lost || g.Phase == member.Forgetful {
		return
	}
	g.Err = err
	switch {
	case err == nil:
		g.Happens(member.Loaded, s.logger)
	case errors.Is(err, group.ErrTailDamaged):
		g.Happens(member.Tearing, s.logger)
		s.noteTail(g, err)
	default:
		g.Happens(member.Failing, s.logger)
	}
}

// noteTail notes that the replica is torn, and why. Called with mu held.
func (s *Shard) noteTail(g *groupReplica, err error) {
	g.Err = fmt.Errorf("%w; it does not vote, and is installed anew from another copy, or replaced; where it stays so, "+
		"start the shards that hold the other copies: a replacement needs a majority without this one", err)
	s.metrics.tails.WithLabelValues(tailFound).Inc()
	s.follower.Nudge()
}

// state is how far the replica is, in the words of the contract. Called with Shard.mu held.
func (g *groupReplica) state() recordv1.GroupState {
	switch {
	case g.Phase.Broken():
		return recordv1.GroupState_GROUP_STATE_FAILED
	case g.Phase == member.Pending:
		return recordv1.GroupState_GROUP_STATE_PENDING
	case g.Phase == member.Serving:
		return recordv1.GroupState_GROUP_STATE_SERVING
	}
	return recordv1.GroupState_GROUP_STATE_LOADING
}

// lost tells whether etcd says that the replica is here, and it is not. Called with Shard.mu held.
func (g *groupReplica) lost() bool { return g.Phase == member.Lost }

// joining tells whether the replica has a Raft id and nothing else yet. Called with Shard.mu held.
func (g *groupReplica) joining() bool { return g.Phase == member.Joining }

// pause closes a group that serves, and lets nothing else change it: where it was closed, the caller unlocks changing.
func (s *Shard) pause(ctx context.Context, g *groupReplica, sv *served) (closed bool, err error) {
	g.changing.Lock()
	if !g.served.CompareAndSwap(sv, nil) {
		g.changing.Unlock()
		return false, errors.New("the replica was closed meanwhile")
	}
	s.mu.Lock()
	g.Happens(member.Paused, s.logger)
	s.mu.Unlock()
	s.setHealth(g, false)
	over, cancel := context.WithCancel(ctx)
	cancel() // it does not lead: nothing of a caller is on its way
	if err := sv.replica.Stop(over); err != nil {
		s.logger.Debug("stopping to install", "group", g.Name, "error", err)
	}
	return true, sv.log.Close(false)
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
	g.Happens(member.Forgot, s.logger)
	s.noteTail(g, errors.Join(fmt.Errorf("%w: %w", group.ErrTailDamaged, why), err))
	s.mu.Unlock()
	s.logger.Error("a replica has forgotten what it acknowledged: was its disk set back?", "group", g.Name, "error", why)
}
