package shard

import (
	"fmt"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// memberView is what is known when it is decided what to do about groups, without the group. Called with mu held.
func (s *Shard) memberView(view placement.View) *member.View {
	return &member.View{
		Shard: s.cfg.Name, Volume: s.volume.Superblock().Volume,
		EpochBase: view.Meta.EpochBase, SetBack: s.held != "", LoadBegun: s.load.begun(), Spent: s.spent,
		CountRemnants: s.unsafe(unsafeRemnant),
	}
}

// decideOne decides about one group of which etcd says state, or nothing where it is not known, and carries that out. g
// is nil where it has no folder here. Called with mu held.
func (s *Shard) decideOne(
	todo *work, v *member.View, view placement.View, state placement.Group, known bool, g *groupReplica,
) {
	v.Known, v.Group, v.Target = known, state, nil
	if len(state.Members) == 0 {
		v.Target = view.Targets[state.Name].Shards
	}
	s.carryOut(todo, view, state, g, member.Decide(v, s.replicaOf(g, state)))
}

// replicaOf is what is known of a replica when it is decided about; nil where there is none. Called with mu held.
func (s *Shard) replicaOf(g *groupReplica, state placement.Group) *member.Replica {
	if g == nil {
		return nil
	}
	r := &member.Replica{
		Name: g.name, RaftID: g.raftID, Phase: g.phase, Standing: g.standing,
		Foreign: g.foreign, Exchanged: g.exchanged, Unreadable: g.unreadable, Untold: g.untold, Confirmed: g.confirmed,
		Fetching: g.isFetching(), Serves: g.served.Load() != nil, KnownIndex: g.confIndex,
	}
	if state.UUID == g.uuid && !member.Names(state, g.raftID) {
		r.KnownIndex = g.knownIndex()
		if len(state.Members) > 0 && r.KnownIndex > state.ConfIndex {
			_, r.InConf = g.role() // seldom: this takes the node's own lock
		}
	}
	return r
}

// carryOut notes what was decided about a group, and adds what is to be done to todo. Called with mu held.
func (s *Shard) carryOut(todo *work, view placement.View, state placement.Group, g *groupReplica, a member.Action) {
	if g != nil {
		if a.Kind == member.Keep && !g.standing.Stray() {
			s.logger.Warn("group is on the volume but not served, and not deleted",
				"group", g.name, "uuid", g.uuid, "reason", a.Standing.String())
		}
		g.standing, g.untold = a.Standing, g.untold && !a.Named
	}
	switch a.Kind {
	case member.Load:
		s.happens(g, member.Begin)
		todo.load = append(todo.load, g)
	case member.Join:
		g.beginFetch(s.ctx)
		todo.join = append(todo.join, g)
	case member.Mend:
		g.beginFetch(s.ctx)
		todo.mend = append(todo.mend, g)
	case member.Create:
		todo.create = append(todo.create, state)
	case member.Adopt:
		todo.adopt = append(todo.adopt, state)
	case member.Start:
		todo.begin = append(todo.begin, state)
	case member.Claim:
		todo.claim = append(todo.claim, state)
	case member.Confess:
		todo.confess = append(todo.confess, state)
	case member.Lose:
		s.lose(state)
	case member.Keep:
		if g.served.Load() != nil {
			s.happens(g, member.SetAside)
			todo.leave = append(todo.leave, g)
		}
	case member.EndFetch:
		g.stopFetch()
		todo.later = true
	case member.Trash:
		todo.trash = append(todo.trash, g)
	case member.Nothing:
	}
	if a.Named {
		seen := [3]int64{state.Revision, view.Targets[state.Name].Revision, replacedMembers(view, state)}
		if g.seen != seen {
			g.seen = seen
			s.steering.ask(g)
		}
	}
}

// lose notes that etcd says this shard holds a group which is not on this volume: never served as if it were empty.
// Called with mu held.
func (s *Shard) lose(state placement.Group) {
	here := s.volume.Superblock().Volume
	err := fmt.Errorf("etcd says that it is on volume %s of this shard, and it is not there: "+
		"restore the group's folder", here)
	if m, _ := memberOf(state, s.cfg.Name); m.VolumeUUID != here {
		err = fmt.Errorf("etcd says that it is on volume %s of this shard, but this is volume %s: "+
			"bring the old volume back", m.VolumeUUID, here)
	}
	g := s.groups[state.UUID]
	if g == nil {
		g = &groupReplica{name: state.Name, uuid: state.UUID, dir: s.volume.GroupDir(state.UUID)}
		s.groups[state.UUID] = g
	}
	s.happens(g, member.Missing)
	g.err = err
	s.logger.Error("the data of a group are lost", "group", g.name, "error", err)
}
