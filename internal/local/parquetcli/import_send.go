package parquetcli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/parquetfile"
)

// These constants limit an import. Each sender has one batch in flight and one that grows.
const (
	batchBytes = 1 << 20 // a batch is sent when its data reach this size
	batchRows  = 256     // a batch is also sent when it has this number of rows
	// patience is the time after which an import gives up if the server has stored nothing.
	patience      = 60 * time.Second
	batchPatience = 30 * time.Second // time limit of a batch, and a second more for each MiB
	requestIDSize = 16
)

// put is a row that has to be stored.
type put struct {
	item client.PutItem
	file string
	row  int64
	// tried is true after an attempt whose outcome is not known.
	tried bool
}

// name names the row for messages.
func (p *put) name() string { return rowName(p.file, p.row) }

// put copies a row. The put succeeds only if its id is free. The request id is the same if the same import is repeated
// with the same import id.
func (im *importer) put(file string, row parquetfile.Row) *put {
	group := im.group
	if im.column != "" {
		group = row.Group
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%s\x00%d", im.opts.ImportID, file, row.Number, group, row.ID))
	return &put{file: file, row: row.Number, item: client.PutItem{
		Key: client.Key{ID: row.ID, Group: group}, Data: slices.Clone(row.Data),
		Options: client.PutOptions{IfAbsent: true, RequestID: sum[:requestIDSize]},
	}}
}

// queue collects the rows of one sender.
type queue struct {
	batches chan []*put
	next    []*put
	bytes   int
}

func (q *queue) add(ctx context.Context, p *put) error {
	q.next = append(q.next, p)
	if q.bytes += len(p.item.Data); q.bytes < batchBytes && len(q.next) < batchRows {
		return nil
	}
	return q.flush(ctx)
}

// flush passes the batch to the sender, and waits until the sender takes it.
func (q *queue) flush(ctx context.Context) error {
	if len(q.next) == 0 {
		return nil
	}
	select {
	case q.batches <- q.next:
		q.next, q.bytes = nil, 0
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send stores batches, one after another.
func (im *importer) send(ctx context.Context, batches <-chan []*put) error {
	for batch := range batches {
		if im.opts.DryRun {
			if err := im.completeTaken(ctx, batch); err != nil {
				return err
			}
			continue
		}
		for attempt := 1; len(batch) > 0; attempt++ {
			again, err := im.sendBatch(ctx, batch)
			if err != nil {
				return err
			}
			if batch = again; len(batch) == 0 {
				break
			}
			select {
			case <-time.After(pace.Pause(attempt)):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// pace is the pace of the import's own retries, which come after the client's retries.
var pace = routing.Pace{First: 20 * time.Millisecond, Most: time.Second}

// sendBatch sends a batch, and returns the rows that must be sent again. An error ends the import.
func (im *importer) sendBatch(ctx context.Context, batch []*put) (again []*put, err error) {
	items := make([]client.PutItem, len(batch))
	limit := batchPatience
	for i, p := range batch {
		items[i] = p.item
		limit += time.Duration(len(p.item.Data)>>20) * time.Second
	}
	try, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	outcomes := im.sink.BatchPut(try, items)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var taken []*put
	var last error
	for i, outcome := range outcomes {
		p := batch[i]
		switch err := outcome.Err; {
		case cli.Retryable(err), errors.Is(err, context.DeadlineExceeded):
			p.tried = true
			again, last = append(again, p), err
			continue
		case err == nil && outcome.Repeated && !p.tried: // stored by an earlier run with the same import id
			im.there.Add(1)
		case err == nil:
			im.countStored(p)
		case errors.Is(err, client.ErrExists):
			taken = append(taken, p)
		case errors.Is(err, client.ErrDiskFull), errors.Is(err, client.ErrMemoryFull):
			return nil, fmt.Errorf("the server has no space for %s; free some space, then run again with --resume: %w", p.name(),
				err)
		default:
			im.failed.Add(failRefused, p.name(), err)
		}
		im.lastSuccess.Store(time.Now().UnixNano())
	}
	if silent := time.Since(time.Unix(0, im.lastSuccess.Load())); last != nil && silent > patience {
		return nil, fmt.Errorf("the server has stored nothing for %v; run again with --resume when it is back: %w",
			silent.Round(time.Second), last)
	}
	return again, im.completeTaken(ctx, taken)
}

func (im *importer) countStored(p *put) {
	im.stored.Add(1)
	im.storedBytes.Add(int64(len(p.item.Data)))
}

// completeTaken completes rows whose ids may be taken. With --resume, a record with the same data is the row itself.
// Without it, every record is in the way. An error ends the import.
func (im *importer) completeTaken(ctx context.Context, rows []*put) error {
	if len(rows) == 0 {
		return nil
	}
	if !im.opts.Resume && !im.opts.DryRun {
		for _, p := range rows {
			im.fail(p, failExists)
		}
		return nil
	}
	items := make([]client.GetItem, len(rows))
	for i, p := range rows {
		items[i] = client.GetItem{Key: p.item.Key, Options: client.GetOptions{
			MetadataOnly: !im.opts.Resume, BytesMax: max(int64(len(p.item.Data)), 1)}}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i, there := range im.sink.BatchGet(ctx, items) {
		p := rows[i]
		switch {
		case errors.Is(there.Err, client.ErrNotFound) && im.opts.DryRun:
			im.countStored(p)
		case errors.Is(there.Err, client.ErrNotFound):
			im.failed.Add(failRefused, p.name(), errors.New("its record was deleted by somebody else meanwhile: run again with "+
				"--resume"))
		case errors.Is(there.Err, client.ErrTooLarge):
			im.fail(p, failOther)
		case there.Err != nil:
			return fmt.Errorf("%s: looking whether record %s is there; run again with --resume: %w", p.name(), p.item.Key,
				there.Err)
		case !im.opts.Resume:
			im.fail(p, failExists)
		case bytes.Equal(there.Record.Data, p.item.Data):
			im.there.Add(1)
		default:
			im.fail(p, failOther)
		}
	}
	return nil
}

// fail counts a row whose id is taken.
func (im *importer) fail(p *put, kind string) {
	words := "record %s is an earlier row, or was stored before (--resume passes over records with the same data)"
	if kind == failOther {
		words = "record %s has other data, which are left as they are"
	}
	im.failed.Add(kind, p.name(), fmt.Errorf(words, p.item.Key))
}
