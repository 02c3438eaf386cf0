package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/peer"
)

// Damage in a replica of a group with several copies is repaired from another one (rule 4). It bars the replica from
// leading meanwhile.

const (
	mendEvery  = time.Second
	scrubPause = 10 * time.Minute
)

// mendAll repairs what is damaged, and reads everything now and then to find it, until ctx ends.
func (s *Shard) mendAll(ctx context.Context) {
	tick := time.NewTicker(s.cfg.mendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r := s.routes.Load()
		if r == nil {
			continue
		}
		for _, g := range r.byUUID {
			if sv := g.served.Load(); sv != nil && sv.log.Damaged() && !sv.replica.Alone() && ctx.Err() == nil {
				err := s.mend(ctx, sv)
				if errors.Is(err, format.ErrClosed) || errors.Is(err, group.ErrRepairLater) || ctx.Err() != nil {
					err = nil
				}
				s.problems.Note("repairing group "+g.Name, err)
			}
		}
	}
}

// mend repairs the damaged files of a replica.
func (s *Shard) mend(ctx context.Context, sv *served) error {
	m := sv.replica.Members()
	from, ok := sv.group.Route(m.LeaderID)
	if !ok || m.LeaderID == sv.raftID {
		return nil // a leader hands over first
	}
	repairs, err := sv.log.Repairs(ctx)
	if err != nil {
		return err
	}
	for _, r := range repairs {
		err := sv.log.Mend(ctx, r, mendSource{s.hub.Fetcher(from), sv.group.UUID, func(ctx context.Context, ref format.BlobRef) error {
			return s.fetchBlob(ctx, sv.group, sv.log, from, ref)
		}})
		if errors.Is(err, group.ErrRepairByInstall) {
			s.steerer.catchUp(sv.group, m.LeaderID)
			return nil
		}
		if err != nil {
			return fmt.Errorf("file %s from shard %s: %w", r.File, from, err)
		}
		s.logger.Warn("damage is repaired from another copy", "group", sv.group.Name, "file", r.File, "from", from)
	}
	return nil
}

// mendSource is the copy from which a replica is repaired.
type mendSource struct {
	from      *peer.Fetcher
	group     uuid.UUID
	fetchBlob func(ctx context.Context, ref format.BlobRef) error
}

// Entries implements group.MendSource.
func (m mendSource) Entries(ctx context.Context, r group.IndexRange) (group.RangeAnswer, error) {
	got, err := m.from.Entries(ctx, m.group, r.First, r.Last)
	if errors.Is(err, peer.ErrNotHere) {
		err = group.ErrRepairLater
	}
	return group.RangeAnswer{Entries: got.Entries, Through: got.Through, Applied: got.Applied}, err
}

// FetchBlob implements group.MendSource.
func (m mendSource) FetchBlob(ctx context.Context, ref format.BlobRef) error {
	err := m.fetchBlob(ctx, ref)
	if errors.Is(err, peer.ErrNotHere) {
		// Or the group does not serve there now: then an install from there comes to nothing too.
		err = group.ErrVersionNotFound
	}
	return err
}

// scrubAll reads every byte of all groups of several copies over and over, slowly, so that damage is found while there
// are copies to repair it from.
func (s *Shard) scrubAll(ctx context.Context) {
	if s.cfg.ScrubBytesPerSecond < 0 {
		return
	}
	for {
		select { // also where there is next to nothing to read
		case <-ctx.Done():
			return
		case <-time.After(s.cfg.scrubPause):
		}
		r := s.routes.Load()
		if r == nil {
			continue
		}
		for _, g := range r.byUUID {
			sv := g.served.Load()
			if sv == nil || sv.replica.Alone() {
				continue // with one copy nothing can be repaired: sheaf verify tells
			}
			report, err := sv.log.Verify(ctx, s.cfg.ScrubBytesPerSecond)
			if ctx.Err() != nil {
				return
			}
			if err != nil && !errors.Is(err, format.ErrClosed) {
				s.logger.Warn("reading everything", "group", g.Name, "error", err)
			}
			for _, d := range report.Damages {
				s.logger.Error("damage found while reading everything", "group", g.Name, "damage", d.String())
			}
		}
	}
}
