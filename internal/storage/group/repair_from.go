package group

import (
	"context"
	"errors"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// RepairSource is another member that supplies data for a repair.
type RepairSource interface {
	// Entries returns all entries of a range; ReadRange returns them piece by piece. Through is below Last if the
	// source has not applied the whole range.
	Entries(ctx context.Context, r IndexRange) (RangeAnswer, error)
	// FetchBlob receives a blob through the log's BlobWriter. It returns ErrVersionNotFound if the source does not
	// have the blob.
	FetchBlob(ctx context.Context, ref format.BlobRef) error
}

// RepairFrom repairs a damaged file with data of another member; r is a result of Repairs. It returns the errors of
// RepairRange, and those of the source.
func (l *Log) RepairFrom(ctx context.Context, r Repair, from RepairSource) error {
	if r.Blob != nil {
		err := from.FetchBlob(ctx, *r.Blob)
		if errors.Is(err, ErrVersionNotFound) {
			// The source has compacted the blob away. Here the blob is kept as long as its entry is, and a log with
			// damage is not compacted.
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
	// Load has removed blobs that no whole entry refers to.
	missing, err := l.MissingBlobs(entries)
	if err != nil {
		return err
	}
	for _, ref := range missing {
		err := from.FetchBlob(ctx, ref)
		if errors.Is(err, ErrVersionNotFound) {
			err = ErrRepairLater // the source compacted the blob away after it had sent the entries
		}
		if err != nil {
			return err
		}
	}
	return l.RepairRange(ctx, r, entries, applied)
}
