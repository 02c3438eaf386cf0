package shard

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/archive"
	"sheaf.dev/sheaf/internal/shard/care"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
)

// newArchive creates the server for the calls from archivers. The limits for data that archivers fetch are separate
// from those for data that other shards fetch.
func (s *Shard) newArchive() *archive.Server {
	return archive.New(archive.Options{
		Shard: s.cfg.Name, Store: s.volume.Store, Groups: forArchive{s}, Holds: s.compactor.History,
		Sender: &peer.Sender{Source: s.peers, ExportsMax: archive.GroupsMax, Logger: s.logger,
			Limiter: peer.NewLimiter(s.cfg.Limits.FetchBytesPerSecond)},
		Stopping: s.stopping.Load, IdleMax: archive.IdleMax,
	})
}

// forArchive implements archive.Groups for a shard.
type forArchive struct{ s *Shard }

func (f forArchive) Led() (groups []archive.Group) {
	for _, g := range f.s.replicas.Routes().ByUUID {
		if sv := g.Served(); sv != nil && sv.Replica().Status().Leader {
			groups = append(groups, archived{sv, f.s.compactor.History, f.s.replicas})
		}
	}
	return groups
}

func (f forArchive) All() (served []archive.Group, unserved []archive.Named) {
	for _, g := range f.s.replicas.Routes().ByUUID {
		if sv := g.Served(); sv != nil {
			served = append(served, archived{sv, f.s.compactor.History, f.s.replicas})
		} else {
			unserved = append(unserved, archive.Named{Name: g.Name, UUID: g.UUID})
		}
	}
	return served, unserved
}

func (f forArchive) Silent() iter.Seq2[archive.Named, error] {
	return func(yield func(archive.Named, error) bool) {
		r := f.s.replicas.Routes()
		for _, g := range r.ByUUID {
			if err := f.silent(r, g); err != nil && !yield(archive.Named{Name: g.Name, UUID: g.UUID}, err) {
				return
			}
		}
	}
}

// silent returns the reason why no shard serves a group at present, as far as this shard knows. If the group has a
// leader, or if another shard may be serving it, silent returns nil.
func (f forArchive) silent(r *replicas.Routes, g *replicas.Replica) error {
	if sv := g.Served(); sv != nil {
		if sv.Replica().Status().LeaderID == 0 {
			return errors.New("no member leads it at present, as far as this shard knows")
		}
		return nil
	}
	state, known := r.View.Groups[g.Name]
	if !known || state.UUID != g.UUID || member.IsShared(state) && state.Leader != f.s.cfg.Name {
		return nil
	}
	return unavailable(g, f.s.cfg.Name, f.s.loading.ETA())
}

func (f forArchive) Deleted(ctx context.Context, g archive.Named) bool {
	if f.s.meta.Routing.Mode == placement.Hash || f.s.replicas.Find(g.UUID) != nil {
		// Groups of Hash routing are never deleted. A group whose files this shard still has does not count as deleted,
		// because the files of a deleted group are moved away first.
		return false
	}
	if state, known := f.s.replicas.Routes().View.Groups[g.Name]; known && state.UUID == g.UUID {
		return false
	}
	view, err := f.s.lookups.find(ctx, g.Name, 0)
	return err == nil && wasDeleted(view, g)
}

// wasDeleted reports whether a group was deleted, according to etcd. If etcd has no key for the group, the group was
// not deleted, because the key of a deleted group is kept. If etcd was rolled back, its content proves nothing, and
// wasDeleted returns false.
func wasDeleted(view placement.View, g archive.Named) bool {
	if view.Held() != "" || view.GroupUnknown(g.Name) {
		return false
	}
	// Another group can get this name only after this group was deleted. That other group may have been deleted since,
	// too.
	next, taken := view.Groups[g.Name]
	_, deleted := view.Deleted[g.Name]
	return taken && next.UUID != g.UUID || !taken && deleted
}

// archived implements archive.Group for a group that the shard serves.
type archived struct {
	sv    *replicas.Served
	holds *care.Holds
	all   *replicas.Set
}

func (a archived) Named() archive.Named { return archive.Named{Name: a.sv.Name(), UUID: a.sv.UUID()} }

func (a archived) Barrier(ctx context.Context) error {
	if err := a.sv.ReadHere(ctx); err != nil {
		return fmt.Errorf("a majority of its members has not answered: %w", err)
	}
	return nil
}

func (a archived) Applied() uint64 { return a.sv.Log().AppliedIndex() }

func (a archived) Read(r group.IndexRange, maxBytes uint64) (group.RangeAnswer, error) {
	return a.sv.Log().ReadRange(r, maxBytes)
}

func (a archived) HistoryFloor() (uint64, bool) { return a.sv.Log().HistoryFloor() }

func (a archived) DeletesFloor() uint64 { return a.sv.Log().DeletesFloor() }

func (a archived) Archived(call any, index uint64) { a.holds.Take(call, a.sv, index) }

func (a archived) Begins(index uint64) { a.holds.Begin(a.sv, index) }

func (a archived) End(ctx context.Context) (bool, error) {
	state, ok := a.all.GroupOf(a.sv.Group)
	if !ok {
		return false, errors.New("nothing is known about it yet")
	}
	ended, err := a.holds.End(ctx, a.sv, state.Group)
	if errors.Is(err, care.ErrFollowed) {
		err = fmt.Errorf("%w: stop the archiver first", archive.ErrFollowed)
	}
	return ended, err
}
