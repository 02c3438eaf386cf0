package follow

import (
	"fmt"
	"maps"
	"slices"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// Work is the work that Decide has found to be done.
type Work[R any] struct {
	Create     []placement.Group // targets without members: create the group here
	Announce   []placement.Group // groups created here whose state was not written to etcd
	MakeFolder []placement.Group // a learner of this shard is recorded, and has no folder yet
	Missing    []placement.Group // this shard is a member without its data
	Present    []placement.Group // groups with a member here whose location etcd does not know
	Load       []R               // replicas that became this shard's after the first load
	Join       []R               // replicas that have a folder, and are to be installed
	Reinstall  []R               // replicas that lack entries that count, to be reinstalled in place
	// Close lists replicas that are served although they are no longer this shard's. Their files remain, because etcd
	// does not say that these replicas have left their groups.
	Close []R
	Trash []R  // replicas that have left their group
	Later bool // something waits for work in progress
}

// groups returns the groups that are reported to etcd, or for which a folder is made.
func (w *Work[R]) groups() []placement.Group {
	return slices.Concat(w.Create, w.Announce, w.MakeFolder, w.Missing, w.Present)
}

// acts reports whether anything is created or removed on the word of etcd.
func (w *Work[R]) acts() bool { return len(w.groups())+len(w.Trash) > 0 }

// Decide returns the work to do, and marks replicas as strays or lost. Called with Options.Lock held.
func (f *Watcher[R]) Decide(view placement.View) Work[R] {
	var todo Work[R]
	v := f.memberView(view)
	known := make(map[R]bool, len(f.Replicas))
	for name, state := range view.Groups {
		owned, here := f.Replicas[state.UUID]
		if here {
			known[owned] = true
			r := owned.Known()
			r.Learn(state.Members)
			if r.Name == "" {
				r.Name = name // its manifest is unreadable or missing
			}
		}
		v.Known = true
		f.decideOne(&todo, v, view, state, owned)
	}
	for _, owned := range f.Replicas {
		if !known[owned] {
			v.Known = false
			v.Deleted = isDeleted(view, owned.Known())
			if name := owned.Known().Name; view.GroupUnknown(name) {
				v.Unread = view.UnusableGroup(name)
			}
			f.decideOne(&todo, v, view, placement.Group{}, owned)
			v.Unread, v.Deleted = "", false
		}
	}
	f.Actions.Connect(f.peers())
	return todo
}

// isDeleted reports whether etcd says that the group of a replica was deleted.
func isDeleted(view placement.View, r *Replica) bool {
	id, is := view.Deleted[r.Name]
	return is && id == r.UUID
}

// peers returns the shards that hold a member of a group that is here.
func (f *Watcher[R]) peers() []string {
	wanted := map[string]bool{}
	for _, owned := range f.Replicas {
		r := owned.Known()
		state, ok := f.View.Groups[r.Name]
		if !ok || state.UUID != r.UUID {
			continue
		}
		if _, isMember := MemberOf(state, f.Shard); !isMember {
			continue
		}
		for _, m := range state.Members {
			wanted[m.Shard] = true
		}
	}
	delete(wanted, f.Shard)
	delete(wanted, "")
	return slices.Collect(maps.Keys(wanted))
}

// memberView returns the knowledge that decisions about all groups share, without a group. Called with Options.Lock
// held.
func (f *Watcher[R]) memberView(view placement.View) *member.View {
	return &member.View{
		Shard: f.Shard, Volume: f.Volume().Superblock().Volume,
		EpochBase: view.Meta.EpochBase, SetBack: f.Held != "", LoadBegun: f.Actions.LoadBegun(), Retired: f.Retired,
		Off: f.Off,
	}
}

// decideOne decides about one group with the given state in etcd, records the decision, and adds the work to todo.
// The argument owned is the zero R if the group has no folder here.
func (f *Watcher[R]) decideOne(todo *Work[R], v *member.View, view placement.View, state placement.Group, owned R) {
	v.Group, v.Target = state, nil
	if len(state.Members) == 0 {
		v.Target = view.Targets[state.Name].Shards
	}
	fact := facts(owned, state)
	a := member.Decide(v, fact)
	if fact != nil {
		r := owned.Known()
		if a.Kind == member.Keep && !r.Standing.Stray() {
			f.Logger.Warn("group is on the volume but not served, and not deleted",
				"group", r.Name, "uuid", r.UUID, "reason", a.Standing.String())
		}
		if r.Standing != a.Standing {
			f.Logger.Debug("the standing of a replica changes", "group", r.Name, "to", a.Standing.String())
		}
		r.Standing, r.NeverReported = a.Standing, r.NeverReported && !a.Named
	}
	switch a.Kind {
	case member.Load:
		owned.Known().Happens(member.LoadBegins, f.Logger)
		todo.Load = append(todo.Load, owned)
	case member.Join:
		owned.BeginFetch(f.Background)
		todo.Join = append(todo.Join, owned)
	case member.Reinstall:
		owned.BeginFetch(f.Background)
		todo.Reinstall = append(todo.Reinstall, owned)
	case member.Create:
		todo.Create = append(todo.Create, state)
	case member.Announce:
		todo.Announce = append(todo.Announce, state)
	case member.MakeFolder:
		todo.MakeFolder = append(todo.MakeFolder, state)
	case member.ReportPresent:
		todo.Present = append(todo.Present, state)
	case member.ReportMissing:
		todo.Missing = append(todo.Missing, state)
	case member.MarkLost:
		f.markLost(state)
	case member.Keep:
		if fact != nil && fact.Serves {
			owned.Known().Happens(member.SetAside, f.Logger)
			todo.Close = append(todo.Close, owned)
		}
	case member.EndFetch:
		owned.Known().StopFetch()
		todo.Later = true
	case member.Trash:
		todo.Trash = append(todo.Trash, owned)
	case member.Nothing:
	}
	if a.Named {
		seen := look{state.Revision, view.Targets[state.Name].Revision, replacedMembers(view, state)}
		if r := owned.Known(); r.seen != seen {
			r.seen = seen
			f.Actions.Look(owned)
		}
	}
}

// markLost records that etcd places a group here although the group is not on this volume. The group is never served as
// if it were empty.
func (f *Watcher[R]) markLost(state placement.Group) {
	here := f.Volume().Superblock().Volume
	err := fmt.Errorf("etcd says that it is on volume %s of this shard, and it is not there: "+
		"restore the group's folder", here)
	if m, _ := MemberOf(state, f.Shard); m.VolumeUUID != here {
		err = fmt.Errorf("etcd says that it is on volume %s of this shard, but this is volume %s: "+
			"bring the old volume back", m.VolumeUUID, here)
	}
	owned, known := f.Replicas[state.UUID]
	if !known {
		owned = f.Actions.Missing(state)
		f.Replicas[state.UUID] = owned
	}
	r := owned.Known()
	r.Happens(member.Missing, f.Logger)
	r.Err = err
	f.Logger.Error("the data of a group are lost", "group", r.Name, "error", err)
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
