package care

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Damage in a replica of a group with several copies is repaired from another copy (rule 4). A damaged replica does not
// lead until it is repaired.

const (
	repairEvery = time.Second
	scrubPause  = 10 * time.Minute
)

// RepairOptions holds everything that a Repairer may use.
type RepairOptions struct {
	Replicas *replicas.Set
	Problems *problems.List
	Logger   *slog.Logger

	// Every is the time between two checks for known damage; 0 means 1 s. ScrubPause is the pause between two scrubs;
	// 0 means 10 min.
	Every, ScrubPause time.Duration
	// ScrubBytesPerSecond is the rate of a scrub. A negative number turns scrubs off.
	ScrubBytesPerSecond int64

	Fetcher   func(shard string) *peer.Fetcher
	FetchBlob func(ctx context.Context, g *replicas.Replica, log *group.Log, shard string, ref format.BlobRef) error
}

// Repairer finds damage in the replicas that this shard serves, and repairs it with data from other shards.
type Repairer struct{ RepairOptions }

// NewRepairer creates a Repairer. It does nothing until Run or Scrub is called.
func NewRepairer(opts RepairOptions) *Repairer {
	opts.Every, opts.ScrubPause = cmp.Or(opts.Every, repairEvery), cmp.Or(opts.ScrubPause, scrubPause)
	return &Repairer{opts}
}

// Run repairs damage until ctx is done.
func (m *Repairer) Run(ctx context.Context) {
	for backoff.Sleep(ctx, m.Every) {
		for _, g := range m.Replicas.Routes().ByUUID {
			if sv := g.Served(); sv != nil && sv.Log().Damaged() && !sv.Replica().Alone() && ctx.Err() == nil {
				err := m.repair(ctx, sv)
				if errors.Is(err, format.ErrClosed) || errors.Is(err, group.ErrRepairLater) || ctx.Err() != nil {
					err = nil
				}
				m.Problems.Note(problems.Repairing+g.Name, err)
			}
		}
		m.forgetEnded()
	}
}

// forgetEnded removes those problems of groups that no other code removes and whose cause has ended. The cause of
// such a problem ends when the replica leaves the shard, no longer leads, or is replaced as a whole.
func (m *Repairer) forgetEnded() {
	routes := m.Replicas.Routes()
	if routes.ByName == nil {
		return // the shard does not know its groups yet
	}
	m.Problems.Forget(func(what string) bool {
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
func (m *Repairer) repair(ctx context.Context, sv *replicas.Served) error {
	members := sv.Replica().Members()
	from, ok := sv.Group.Route(members.LeaderID)
	if members.LeaderID == sv.RaftID {
		sv.Replica().Wake() // a damaged leader must first transfer the leadership, and Wake makes even a group at rest do so
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
		source := repairSource{m.Fetcher(from), sv.Group.UUID, func(ctx context.Context, ref format.BlobRef) error {
			return m.FetchBlob(ctx, sv.Group, sv.Log(), from, ref)
		}}
		err := sv.Log().RepairFrom(ctx, r, source)
		if errors.Is(err, group.ErrRepairByInstall) {
			sv.Group.AskFiles(members.LeaderID)
			return nil
		}
		if err != nil {
			return fmt.Errorf("file %s from shard %s: %w", r.File, from, err)
		}
		m.Logger.Warn("damage is repaired from another copy", "group", sv.Group.Name, "file", r.File, "from", from)
	}
	return nil
}

// repairSource is the copy from which a replica is repaired. It implements group.RepairSource.
type repairSource struct {
	from      *peer.Fetcher
	group     uuid.UUID
	fetchBlob func(ctx context.Context, ref format.BlobRef) error
}

func (m repairSource) Entries(ctx context.Context, r group.IndexRange) (group.RangeAnswer, error) {
	got, err := m.from.Entries(ctx, m.group, r.First, r.Last)
	if errors.Is(err, peer.ErrNotHere) {
		err = group.ErrRepairLater
	}
	return group.RangeAnswer{Entries: got.Entries, Through: got.Through, Applied: got.Applied}, err
}

func (m repairSource) FetchBlob(ctx context.Context, ref format.BlobRef) error {
	err := m.fetchBlob(ctx, ref)
	if errors.Is(err, peer.ErrNotHere) {
		// The other shard does not serve the group now, so an install from it would fail, too.
		err = group.ErrVersionNotFound
	}
	return err
}

// Scrub repeatedly and slowly reads every byte of all groups with several copies, so that damage is found while other
// copies can repair it.
func (m *Repairer) Scrub(ctx context.Context) {
	if m.ScrubBytesPerSecond < 0 {
		return
	}
	for backoff.Sleep(ctx, m.ScrubPause) { // the pause is needed even if there is almost nothing to read
		for _, g := range m.Replicas.Routes().ByUUID {
			sv := g.Served()
			if sv == nil || sv.Replica().Alone() {
				continue // a single copy cannot be repaired; sheaf verify finds its damage
			}
			report, err := sv.Log().Verify(ctx, m.ScrubBytesPerSecond)
			if ctx.Err() != nil {
				return
			}
			if err != nil && !errors.Is(err, format.ErrClosed) {
				m.Logger.Warn("reading everything", "group", g.Name, "error", err)
			}
			for _, d := range report.Damages {
				m.Logger.Error("damage found while reading everything", "group", g.Name, "damage", d.String())
			}
		}
	}
}
