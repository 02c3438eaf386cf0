package replicas

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// Work is the result of Decide: the work that its caller must do.
type Work struct {
	Create []placement.Group // groups that this shard must create: they have no members, and it is their target
	// Announce lists the groups that this shard has created or installed from the source of a restore, and that etcd does
	// not list at this shard yet.
	Announce   []placement.Group
	Settle     []placement.Group // groups whose founder on this shard is listed by etcd, and does not serve calls yet
	MakeFolder []placement.Group // groups whose learner or founder on this shard has no folder yet
	Missing    []placement.Group // groups whose member on this shard lacks its data
	Present    []placement.Group // groups whose member on this shard has no location in etcd
	Load       []*Replica        // replicas that must be loaded, and that came to this shard after the first load
	Join       []*Replica        // replicas that have a folder and must be installed
	Reinstall  []*Replica        // replicas that lack entries, and must be reinstalled in place
	// Close lists served replicas that do not belong to this shard any more. They stop serving, but their files remain,
	// because etcd does not confirm that these replicas have left their groups.
	Close []*Replica
	Trash []*Replica // replicas that have left their group
	Later bool       // another pass is needed after the work in progress has finished
	Look  []*Replica // replicas whose group has changed; the leaders among them must examine their group
	Peers []string   // all shards that share a group with this shard
}

// Groups returns the groups for which the work writes to etcd or creates a folder.
func (w *Work) Groups() []placement.Group {
	return slices.Concat(w.Create, w.Announce, w.Settle, w.MakeFolder, w.Missing, w.Present)
}

// Acts reports whether the work creates or removes anything because of the state of etcd.
func (w *Work) Acts() bool { return len(w.Groups())+len(w.Trash) > 0 }

// Decide decides about each replica, and about each group of a view. It changes phases, standings and routes
// accordingly, and returns the work that the caller must do.
func (s *Set) Decide(view placement.View) Work {
	s.mu.Lock()
	defer s.mu.Unlock()
	var todo Work
	v := s.memberView(view)
	known := make(map[*Replica]bool, len(s.all))
	for name, state := range view.Groups {
		r := s.all[state.UUID]
		if r != nil {
			known[r] = true
			r.Learn(state.Members)
			if r.Name == "" {
				r.Name = name // the manifest, which holds the name, is unreadable or missing
			}
		}
		v.Known = true
		s.decideOne(&todo, v, view, state, r)
	}
	for _, r := range s.all {
		if !known[r] {
			v.Known = false
			if r.Name == "" { // a replica that was joining when the process was stopped has no manifest
				r.Name = nameOfDeleted(view, r.UUID)
			}
			v.Deleted, v.Replaced = isDeleted(view, r), isReplaced(view, r)
			if view.GroupUnknown(r.Name) {
				v.Unread = view.UnusableGroup(r.Name)
			}
			s.decideOne(&todo, v, view, placement.Group{}, r)
			v.Unread, v.Deleted, v.Replaced = "", false, false
		}
	}
	todo.Peers = s.peers()
	s.publish()
	return todo
}

// HasLeft reports whether a later view confirms that a replica has left its group.
func (s *Set) HasLeft(r *Replica, view placement.View) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := view.Groups[r.Name]
	if view.Meta.EpochBase != s.view.Meta.EpochBase || state.Revision < s.view.Groups[r.Name].Revision {
		return false // the view comes from a different etcd or is outdated, so wait for the next one
	}
	if isDeleted(view, r) {
		return true
	}
	now := s.memberView(view)
	if isReplaced(view, r) {
		now.Replaced = true
		return now.Left(r.facts(placement.Group{}))
	}
	now.Group, now.Target = state, targetOf(view, state)
	return state.UUID == r.UUID && now.Left(r.facts(state))
}

// nameOfDeleted returns the name of the deleted group with this UUID. It returns an empty string if etcd lists no
// such deleted group.
func nameOfDeleted(view placement.View, id uuid.UUID) string {
	for name, deleted := range view.Deleted {
		if deleted == id {
			return name
		}
	}
	return ""
}

// isDeleted reports whether etcd lists a replica's group as deleted.
func isDeleted(view placement.View, r *Replica) bool {
	id, is := view.Deleted[r.Name]
	return is && id == r.UUID
}

// isReplaced reports whether etcd has another group under the name of a replica's group. If the name is unknown,
// because the replica was joining when the process was stopped, isReplaced reports whether no group in etcd has the
// replica's UUID. A key of a group that cannot be used may be the key of that group, and so may a key that is not
// listed yet. The caller has checked that no group of the view has the replica's UUID.
func isReplaced(view placement.View, r *Replica) bool {
	if r.Name == "" {
		return !view.Meta.Listing() && len(view.Unknown()) == 0
	}
	state, is := view.Groups[r.Name]
	return is && state.UUID != r.UUID
}

// peers returns the shards that share a group with this shard. The caller holds mu.
func (s *Set) peers() []string {
	wanted := map[string]bool{}
	for _, r := range s.all {
		state, ok := s.view.Groups[r.Name]
		if !ok || state.UUID != r.UUID {
			continue
		}
		if _, isMember := MemberOf(state, s.Shard); !isMember {
			continue
		}
		for _, m := range state.Members {
			wanted[m.Shard] = true
		}
	}
	delete(wanted, s.Shard)
	delete(wanted, "")
	return slices.Collect(maps.Keys(wanted))
}

// memberView returns the part of a member.View that is the same for all groups. The caller holds mu.
func (s *Set) memberView(view placement.View) *member.View {
	return &member.View{
		Shard: s.Shard, Volume: s.Volume(), EpochBase: view.Meta.EpochBase, SetBack: s.newest.Held() != "",
		Listing:   view.Meta.Restore != nil && view.Meta.Restore.Listing,
		LoadBegun: s.begun, Retired: s.retired, Off: s.Off,
	}
}

// targetOf returns the shards that should hold a group that has no members. If the group has members, targetOf returns
// nil, because then only the group's leader acts on the target.
func targetOf(view placement.View, state placement.Group) []string {
	if len(state.Members) > 0 {
		return nil
	}
	return view.Targets[state.Name].Shards
}

// decideOne decides about one group with the given state in etcd, records the decision, and adds the work to todo. r
// is nil if the group has no folder on the volume. The caller holds mu.
func (s *Set) decideOne(todo *Work, v *member.View, view placement.View, state placement.Group, r *Replica) {
	v.Group, v.Target = state, targetOf(view, state)
	var facts *member.Replica
	if r != nil {
		facts = r.facts(state)
	}
	a := member.Decide(v, facts)
	if r != nil {
		r.judge(a)
	}
	switch a.Kind {
	case member.Load:
		r.happens(member.LoadBegins)
		todo.Load = append(todo.Load, r)
	case member.Join:
		r.beginFetch(s.Background)
		todo.Join = append(todo.Join, r)
	case member.Reinstall:
		r.beginFetch(s.Background)
		todo.Reinstall = append(todo.Reinstall, r)
	case member.Create:
		todo.Create = append(todo.Create, state)
	case member.Announce:
		todo.Announce = append(todo.Announce, state)
	case member.Settle:
		todo.Settle = append(todo.Settle, state)
	case member.MakeFolder:
		todo.MakeFolder = append(todo.MakeFolder, state)
	case member.ReportPresent:
		todo.Present = append(todo.Present, state)
	case member.ReportMissing:
		todo.Missing = append(todo.Missing, state)
	case member.MarkLost:
		s.markLost(state)
	case member.Keep:
		if facts != nil && facts.Serves {
			r.happens(member.SetAside)
			todo.Close = append(todo.Close, r)
		}
	case member.EndFetch:
		r.stopFetch()
		todo.Later = true
	case member.Trash:
		r.state.Plan = nil // the folder will be moved, so a load that begins later must not use the plan
		todo.Trash = append(todo.Trash, r)
	case member.Nothing:
	}
	if a.Named {
		seen := look{state.Revision, view.Targets[state.Name].Revision, replacedMembers(view, state)}
		if r.seen != seen {
			r.seen = seen
			todo.Look = append(todo.Look, r)
		}
	}
}

// judge gives the replica the standing that was decided. The caller holds Set.mu.
func (r *Replica) judge(a member.Action) {
	logger := r.set.Logger
	if a.Kind == member.Keep && !r.state.Standing.Stray() {
		logger.Warn("group is on the volume but not served, and not deleted",
			"group", r.Name, "uuid", r.UUID, "reason", a.Standing.String())
	}
	if r.state.Standing != a.Standing {
		logger.Debug("the standing of a replica changes", "group", r.Name, "to", a.Standing.String())
	}
	r.state.Standing, r.state.NeverReported = a.Standing, r.state.NeverReported && !a.Named
}

// markLost records that a group which etcd places on this shard is not on this volume. Such a group is never served
// as if it were empty. The caller holds mu.
func (s *Set) markLost(state placement.Group) {
	here := s.Volume()
	err := fmt.Errorf("etcd says that it is on volume %s of this shard, and it is not there: "+
		"restore the group's folder", here)
	if m, _ := MemberOf(state, s.Shard); m.VolumeUUID != here {
		err = fmt.Errorf("etcd says that it is on volume %s of this shard, but this is volume %s: "+
			"bring the old volume back", m.VolumeUUID, here)
	}
	r := s.all[state.UUID]
	if r == nil {
		r = s.make(state.UUID, State{Replica: member.Replica{Name: state.Name}})
		s.all[state.UUID] = r
	}
	r.happens(member.Missing)
	r.state.Err = err
	s.Logger.Error("the data of a group are lost", "group", r.Name, "error", err)
}

// replacedMembers counts the members whose shard is now registered with a different volume. These members are gone.
func replacedMembers(view placement.View, state placement.Group) (n int64) {
	for _, m := range state.Members {
		if shard, registered := view.Shards[m.Shard]; registered && shard.VolumeUUID != m.VolumeUUID {
			n++
		}
	}
	return n
}

// IsOwn reports whether a view names a shard for a group: as a member, or as a target for a copy.
func IsOwn(view placement.View, name, shard string) bool {
	_, isMember := MemberOf(view.Groups[name], shard)
	return isMember || slices.Contains(view.Targets[name].Shards, shard)
}

// MemberOf returns the member of a group on the named shard.
func MemberOf(g placement.Group, shard string) (placement.Member, bool) {
	for _, m := range g.Members {
		if m.Shard == shard {
			return m, true
		}
	}
	return placement.Member{}, false
}
