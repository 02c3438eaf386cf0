package sim

import (
	"context"
	"errors"
	"io"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

var errUnreachable = errors.New("not reachable")

// storeBlob stores data as a blob of a log.
func (p *process) storeBlob(data []byte) (format.BlobRef, error) {
	b, err := p.log.CreateBlob()
	if err != nil {
		return format.BlobRef{}, err
	}
	defer b.Close()
	if _, err := b.Write(data); err != nil {
		return format.BlobRef{}, err
	}
	return b.Commit()
}

func (p *process) readBlob(ref format.BlobRef) ([]byte, error) {
	b, err := p.log.OpenBlob(ref)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return io.ReadAll(io.NewSectionReader(b, 0, ref.Size))
}

// fetchBlobs fetches the blobs that the leader's entries refer to. A follower calls it before it stores the entries.
func (p *process) fetchBlobs(ctx context.Context, from uint64, refs []format.BlobRef) error {
	w := p.machine.world
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(5 * time.Millisecond):
	}
	w.mu.Lock()
	var source *process
	if m := w.at[from]; m != nil && !w.partitioned[[2]int{m.number, p.machine.number}] && !p.dead {
		source = m.process
	}
	w.mu.Unlock()
	if source == nil {
		return errUnreachable
	}
	for _, ref := range refs {
		if err := source.copyBlob(p, ref); err != nil {
			return err
		}
	}
	w.fire("blob fetched")
	return nil
}

// copyBlob copies a blob to another replica.
func (p *process) copyBlob(to *process, ref format.BlobRef) error {
	data, err := p.readBlob(ref)
	if err != nil {
		return err
	}
	b, err := to.log.BlobWriter(ref)
	if err != nil {
		return err
	}
	defer b.Close()
	if _, err := b.Write(data); err != nil {
		return err
	}
	_, err = b.Commit()
	return err
}
