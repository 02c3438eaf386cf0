package follow

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
)

// etcdTime bounds one request to etcd.
const etcdTime = 5 * time.Second

// create creates a group that has no members yet and whose target names this shard. The group serves as soon as etcd
// lists this shard as its member.
func (f *Watcher) create(ctx context.Context, state placement.Group) error {
	if err := f.Actions.Create(ctx, state); err != nil {
		return fmt.Errorf("creating it: %w", err)
	}
	return f.announce(ctx, state)
}

// announce reports to etcd that this shard has a group that it has created, or installed from the source of a restore.
// The folder's name is the group's UUID, which shows that the folder was created for exactly this group. If another
// shard has reported the group first, the write is refused, because the key has changed since this shard read it.
func (f *Watcher) announce(ctx context.Context, state placement.Group) error {
	r := f.Replicas.Find(state.UUID)
	if r == nil {
		return nil
	}
	if r.BeginLoad() {
		f.Actions.LoadNow(ctx, r)
	}
	sv := r.Served()
	if sv == nil {
		return errLater // the replica is still loading or has failed, and its state shows which
	}
	state.Members = []placement.Member{{Shard: f.Replicas.Shard, VolumeUUID: f.Replicas.Volume(), RaftID: sv.RaftID}}
	state.Leader, state.Restoring = f.Replicas.Shard, false
	stored, err := f.Etcd.PutGroup(ctx, state)
	if err != nil {
		return fmt.Errorf("telling etcd that it is here: %w", err)
	}
	r.Confirm(stored)
	if r.State().Founder {
		return f.settle(ctx, state)
	}
	return nil
}

// settle makes a founder that etcd lists a member like others. Until the volume says that it is one, the founder serves
// no calls. Otherwise its acknowledged writes would be lost if etcd had to be rebuilt from the volumes, because a
// founder on a volume may be one of several, and does not count.
func (f *Watcher) settle(_ context.Context, state placement.Group) error {
	r := f.Replicas.Find(state.UUID)
	if r == nil {
		return nil
	}
	if err := f.Actions.Settle(r); err != nil {
		return fmt.Errorf("recording on the volume that etcd lists it here: %w", err)
	}
	r.Settle()
	return nil
}

// reportMissing reports to etcd that this shard's replicas of a group with several copies are missing or incomplete.
// The leader then replaces them. They never come back, because a Raft id is not reused.
func (f *Watcher) reportMissing(ctx context.Context, state placement.Group) error {
	sound := uint64(0) // Raft id of a replica on this volume that was not given up; 0 if there is none
	if r := f.Replicas.Find(state.UUID); r != nil {
		if known := r.State(); known.Phase != member.Lost && known.Phase != member.GivenUp {
			sound = known.RaftID
		}
	}
	state.Members = slices.Clone(state.Members)
	for i, m := range state.Members {
		if m.Shard == f.Replicas.Shard && m.VolumeUUID == f.Replicas.Volume() && (m.RaftID != sound || sound == 0) {
			f.Logger.Error("the replica of a group is not on its volume, or not whole: it is to be replaced", "group",
				state.Name, "raft_id", m.RaftID)
			state.Members[i].VolumeUUID = uuid.Nil
		}
	}
	if _, err := f.Etcd.PutGroup(ctx, state); err != nil {
		return fmt.Errorf("telling etcd that its replica here is gone: %w", err)
	}
	return nil
}

// reportPresent reports to etcd that a member is on this shard. etcd may lack the member's location because etcd was
// rebuilt without this volume. It may also lack the member itself, because an older membership was written to it. The
// report is needed because the leader changes no membership until it knows the location of every member. If the
// member has been removed in the meantime, the leader reports a later membership that shows this.
func (f *Watcher) reportPresent(ctx context.Context, state placement.Group) error {
	r := f.Replicas.Find(state.UUID)
	if r == nil {
		return nil
	}
	self, forgotten := r.Member(state)
	state.Members = slices.Clone(state.Members)
	i := slices.IndexFunc(state.Members, func(m placement.Member) bool { return m.RaftID == self.RaftID && m.Shard == "" })
	if i < 0 && forgotten {
		i = len(state.Members)
		state.Members = append(state.Members, self)
	}
	if i < 0 {
		return nil
	}
	state.Members[i].Shard, state.Members[i].VolumeUUID = f.Replicas.Shard, f.Replicas.Volume()
	if _, err := f.Etcd.PutGroup(ctx, state); err != nil {
		return fmt.Errorf("telling etcd that member %x is here: %w", self.RaftID, err)
	}
	f.Logger.Warn("etcd did not know where a member is: it is here", "group", state.Name, "raft_id", self.RaftID)
	return nil
}

// hasLeftNow reads the group's key from etcd again, and reports whether the key confirms what Reconcile has
// concluded, namely that this replica has left the group. An error means that etcd does not respond.
func (f *Watcher) hasLeftNow(ctx context.Context, r *replicas.Replica) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	view, err := f.Etcd.Look(ctx, r.Name)
	if err != nil {
		return false, err
	}
	if view.Held() != "" || view.Meta.StoreUUID != f.Store() {
		return false, nil
	}
	return f.Replicas.HasLeft(r, view), nil
}

// adoptMembers takes over the members that etcd places on this volume under the name of another shard, if that other
// shard is not registered. It returns the changed view.
func (f *Watcher) adoptMembers(ctx context.Context, view placement.View) (placement.View, error) {
	if !f.Adopt || view.Held() != "" {
		return view, nil
	}
	groups := maps.Clone(view.Groups)
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g := groups[name]
		i := slices.IndexFunc(g.Members, func(m placement.Member) bool {
			_, alive := view.Shards[m.Shard]
			return m.VolumeUUID == f.Replicas.Volume() && m.Shard != f.Replicas.Shard && !alive
		})
		if i < 0 {
			continue
		}
		from := g.Members[i].Shard
		g.Members = slices.Clone(g.Members)
		g.Members[i].Shard = f.Replicas.Shard
		if g.Leader == from {
			g.Leader = f.Replicas.Shard
		}
		g, err := f.Etcd.PutGroup(ctx, g)
		if err != nil {
			return view, fmt.Errorf("adopting group %s from shard %s: %w", name, from, err)
		}
		groups[name] = g
		f.Logger.Warn("group is adopted", "group", name, "from", from)
	}
	view.Groups = groups
	return view, nil
}
