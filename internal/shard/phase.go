package shard

import (
	"errors"
	"fmt"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/shard/member"
)

// noTransition is logged where something happens to a replica that cannot happen in its phase. Tests fail where they
// see it.
const noTransition = "a replica stays in its phase, which this event must not find it in: that is a bug, please report it"

// happens changes the phase of a replica. Called with mu held.
func (s *Shard) happens(g *groupReplica, e member.Event) {
	next, legal := g.phase.After(e)
	if !legal {
		s.logger.Error(noTransition, "group", g.name, "uuid", g.uuid, "phase", g.phase, "event", e)
	}
	g.phase = next
}

// loadEnded notes how a load went. What was decided of the replica while it ran stays. Called with mu held.
func (s *Shard) loadEnded(g *groupReplica, err error) {
	if g.phase == member.Lost || g.phase == member.Forgetful {
		return
	}
	g.err = err
	switch {
	case err == nil:
		s.happens(g, member.Loaded)
	case errors.Is(err, group.ErrTailDamaged):
		s.happens(g, member.Tearing)
		s.noteTail(g, err)
	default:
		s.happens(g, member.Failing)
	}
}

// noteTail notes that the replica is torn, and why. Called with mu held.
func (s *Shard) noteTail(g *groupReplica, err error) {
	g.err = fmt.Errorf("%w; it does not vote, and is installed anew from another copy, or replaced; where it stays so, "+
		"start the shards that hold the other copies: a replacement needs a majority without this one", err)
	s.metrics.tails.WithLabelValues(tailFound).Inc()
	s.nudge()
}

// state is how far the replica is, in the words of the contract. Called with Shard.mu held.
func (g *groupReplica) state() recordv1.GroupState {
	switch {
	case g.phase.Broken():
		return recordv1.GroupState_GROUP_STATE_FAILED
	case g.phase == member.Pending:
		return recordv1.GroupState_GROUP_STATE_PENDING
	case g.phase == member.Serving:
		return recordv1.GroupState_GROUP_STATE_SERVING
	}
	return recordv1.GroupState_GROUP_STATE_LOADING
}

// lost tells whether etcd says that the replica is here, and it is not. Called with Shard.mu held.
func (g *groupReplica) lost() bool { return g.phase == member.Lost }

// joining tells whether the replica has a Raft id and nothing else yet. Called with Shard.mu held.
func (g *groupReplica) joining() bool { return g.phase == member.Joining }
