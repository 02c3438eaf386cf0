package group

import (
	"context"
	"errors"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// MendSource is another member, from which comes what is damaged here.
type MendSource interface {
	// Entries gives all of a range, as ReadRange does piece by piece: Through is below Last where it has not applied so
	// far.
	Entries(ctx context.Context, r IndexRange) (RangeAnswer, error)
	// FetchBlob receives a blob by the log's BlobWriter. ErrVersionNotFound: it has none.
	FetchBlob(ctx context.Context, ref format.BlobRef) error
}

// Mend repairs a damaged file (r is of Repairs) with what another member has. Errors as those of RepairRange, and those
// of the source.
func (l *Log) Mend(ctx context.Context, r Repair, from MendSource) error {
	if r.Blob != nil {
		err := from.FetchBlob(ctx, *r.Blob)
		if errors.Is(err, ErrVersionNotFound) {
			// Compacted away there. Here it stays as long as the entry does, and with damage nothing is compacted.
			err = ErrRepairByInstall
		}
		return err
	}
	var (
		entries []*raftpb.Entry
		applied uint64
	)
	for _, span := range r.Ranges {
		got, err := from.Entries(ctx, span)
		if err != nil {
			return err
		}
		if got.Through < span.Last {
			return ErrRepairLater
		}
		entries, applied = append(entries, got.Entries...), max(applied, got.Applied)
	}
	// Load removes blobs that no whole entry refers to.
	missing, err := l.MissingBlobs(entries)
	if err != nil {
		return err
	}
	for _, ref := range missing {
		err := from.FetchBlob(ctx, ref)
		if errors.Is(err, ErrVersionNotFound) {
			err = ErrRepairLater // compacted away since it answered
		}
		if err != nil {
			return err
		}
	}
	return l.RepairRange(ctx, r, entries, applied)
}
