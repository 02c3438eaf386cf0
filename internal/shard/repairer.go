package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Damage in a replica of a group with several copies is repaired from another copy (rule 4). Until then it keeps the
// replica from leading.

const (
	repairEvery = time.Second
	scrubPause  = 10 * time.Minute
)

// repairer finds damage in the replicas that serve here, and has it repaired. It finds the replicas in routes, and
// fetches missing data from peers. One goroutine repairs, another one reads.
type repairer struct {
	cfg      *Config
	routes   func() *replicas.Routes
	peers    *peers
	problems *problems.List
	logger   *slog.Logger
}

func newRepairer(s *Shard) *repairer {
	return &repairer{cfg: &s.cfg, routes: s.replicas.Routes, peers: s.peers,
		problems: s.problems, logger: s.logger}
}

// repairAll repairs damage, and reads everything regularly to find it, until ctx ends.
func (m *repairer) repairAll(ctx context.Context) {
	tick := time.NewTicker(m.cfg.repairEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, g := range m.routes().ByUUID {
			if sv := g.Served(); sv != nil && sv.Log().Damaged() && !sv.Replica().Alone() && ctx.Err() == nil {
				err := m.repair(ctx, sv)
				if errors.Is(err, format.ErrClosed) || errors.Is(err, group.ErrRepairLater) || ctx.Err() != nil {
					err = nil
				}
				m.problems.Note(problems.Repairing+g.Name, err)
			}
		}
		m.forgetEnded()
	}
}

// forgetEnded removes problems of groups whose cause has ended in a way that nobody notes at the problem: the replica
// has left the shard, no longer leads, or was replaced as a whole.
func (m *repairer) forgetEnded() {
	routes := m.routes()
	if routes.ByName == nil {
		return // it is not known yet which groups are here
	}
	m.problems.Forget(func(what string) bool {
		for prefix, isOver := range map[string]func(*replicas.Served) bool{
			problems.Moving: func(sv *replicas.Served) bool { return sv == nil || !sv.Replica().Status().Leader },
			problems.Resuming: func(sv *replicas.Served) bool {
				return sv == nil || !sv.Replica().Status().Leader || !sv.Replica().Ended()
			},
			problems.Repairing:  func(sv *replicas.Served) bool { return sv == nil || !sv.Log().Damaged() },
			problems.Installing: func(*replicas.Served) bool { return false },
			problems.Compacting: func(*replicas.Served) bool { return false },
		} {
			if name, ok := strings.CutPrefix(what, prefix); ok {
				g := routes.ByName[name]
				return g == nil || isOver(g.Served())
			}
		}
		return false
	})
}

// repair repairs the damaged files of a replica.
func (m *repairer) repair(ctx context.Context, sv *replicas.Served) error {
	members := sv.Replica().Members()
	from, ok := sv.Group.Route(members.LeaderID)
	if members.LeaderID == sv.RaftID {
		sv.Replica().Wake() // a leader hands over first, which a group that rests does not
		return nil
	}
	if !ok {
		return nil
	}
	repairs, err := sv.Log().Repairs(ctx)
	if err != nil {
		return err
	}
	for _, r := range repairs {
		source := repairSource{m.peers.hub.Fetcher(from), sv.Group.UUID, func(ctx context.Context, ref format.BlobRef) error {
			return m.peers.fetchBlob(ctx, sv.Group, sv.Log(), from, ref)
		}}
		err := sv.Log().RepairFrom(ctx, r, source)
		if errors.Is(err, group.ErrRepairByInstall) {
			sv.Group.AskFiles(members.LeaderID)
			return nil
		}
		if err != nil {
			return fmt.Errorf("file %s from shard %s: %w", r.File, from, err)
		}
		m.logger.Warn("damage is repaired from another copy", "group", sv.Group.Name, "file", r.File, "from", from)
	}
	return nil
}

// repairSource is the copy from which a replica is repaired.
type repairSource struct {
	from      *peer.Fetcher
	group     uuid.UUID
	fetchBlob func(ctx context.Context, ref format.BlobRef) error
}

// Entries implements group.RepairSource.
func (m repairSource) Entries(ctx context.Context, r group.IndexRange) (group.RangeAnswer, error) {
	got, err := m.from.Entries(ctx, m.group, r.First, r.Last)
	if errors.Is(err, peer.ErrNotHere) {
		err = group.ErrRepairLater
	}
	return group.RangeAnswer{Entries: got.Entries, Through: got.Through, Applied: got.Applied}, err
}

// FetchBlob implements group.RepairSource.
func (m repairSource) FetchBlob(ctx context.Context, ref format.BlobRef) error {
	err := m.fetchBlob(ctx, ref)
	if errors.Is(err, peer.ErrNotHere) {
		// Or the group does not serve there now: then an install from there would fail, too.
		err = group.ErrVersionNotFound
	}
	return err
}

// scrubAll reads every byte of all groups of several copies again and again, slowly, so that damage is found while
// there are copies to repair it from.
func (m *repairer) scrubAll(ctx context.Context) {
	if m.cfg.scrubBytesPerSecond < 0 {
		return
	}
	for {
		select { // the pause comes even if there is almost nothing to read
		case <-ctx.Done():
			return
		case <-time.After(m.cfg.scrubPause):
		}
		for _, g := range m.routes().ByUUID {
			sv := g.Served()
			if sv == nil || sv.Replica().Alone() {
				continue // a single copy cannot be repaired: sheaf verify reports damage
			}
			report, err := sv.Log().Verify(ctx, m.cfg.scrubBytesPerSecond)
			if ctx.Err() != nil {
				return
			}
			if err != nil && !errors.Is(err, format.ErrClosed) {
				m.logger.Warn("reading everything", "group", g.Name, "error", err)
			}
			for _, d := range report.Damages {
				m.logger.Error("damage found while reading everything", "group", g.Name, "damage", d.String())
			}
		}
	}
}
