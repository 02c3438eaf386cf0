package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/routing"
)

// send stores the files that were read, batch by batch. Several senders run in parallel, so one batch at a time for
// each sender is enough to keep the server busy.
func (im *importer) send(ctx context.Context) error {
	var again []*put // puts that must be sent again
	for {
		batch := again
		if len(batch) == 0 {
			if batch = im.collect(ctx); len(batch) == 0 {
				return context.Cause(ctx)
			}
		}
		var err error
		if again, err = im.sendBatch(ctx, batch); err != nil {
			return err
		}
	}
}

// collect waits for one put and adds all others that are immediately available. An empty result means that no more puts
// will arrive.
func (im *importer) collect(ctx context.Context) []*put {
	var batch []*put
	var bytes int64
	for bytes < batchBytes && len(batch) < batchPuts {
		var p *put
		var ok bool
		if len(batch) == 0 {
			select {
			case p, ok = <-im.puts:
			case <-ctx.Done():
			}
		} else {
			select {
			case p, ok = <-im.puts:
			default:
			}
		}
		if !ok {
			break
		}
		batch = append(batch, p)
		bytes += int64(len(p.data)) + 512
	}
	return batch
}

// sendBatch sends a batch and completes each of its puts, except those that must be sent again. An error ends the
// import.
func (im *importer) sendBatch(ctx context.Context, batch []*put) (again []*put, err error) {
	items := make([]client.PutItem, len(batch))
	for i, p := range batch {
		items[i] = client.PutItem{Key: p.job.key, Data: p.data, Options: p.options}
	}
	try, cancel := context.WithTimeout(ctx, min(batchPatience, max(importPatience-im.silence(), time.Second)))
	defer cancel()
	outcomes := im.conn.BatchPut(try, items)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var last error
	for i, outcome := range outcomes {
		p := batch[i]
		if Retryable(outcome.Err) || errors.Is(outcome.Err, context.DeadlineExceeded) {
			p.attempts++ // the put may have been stored
			again, last = append(again, p), outcome.Err
			continue
		}
		size := int64(len(p.data))
		if err := im.complete(ctx, p, size, outcome.Repeated, outcome.Err); err != nil {
			return nil, err
		}
		im.seenBytes.Add(size)
		im.memory.Release(p.reserved)
	}
	if last != nil {
		err = im.waitRetry(ctx, again[0], last)
	}
	return again, err
}

// importPace is the pace of the import's own retries, which come after the client's retries.
var importPace = routing.Pace{First: 20 * time.Millisecond, Most: time.Second}

// silence returns the time since the server's last conclusive answer.
func (im *importer) silence() time.Duration { return time.Since(time.Unix(0, im.lastSuccess.Load())) }

// waitRetry waits before a retry of p, and gives up if the server has given no conclusive answer for importPatience.
// If err is an exceeded deadline, which does not explain why the server had to wait, waitRetry reads the record and
// takes the reason from that read.
func (im *importer) waitRetry(ctx context.Context, p *put, err error) error {
	if silent := im.silence(); silent > importPatience {
		if why := im.conn.whyOf(ctx, p.job.key); why != nil && status.Code(err) == codes.DeadlineExceeded {
			err = why
		}
		return fmt.Errorf("the server has stored nothing for %v; run again with --resume when it is back: %w",
			silent.Round(time.Second), err)
	}
	select {
	case <-time.After(importPace.Pause(p.attempts)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// complete completes one file, which is stored (err is nil) or was refused. A returned error ends the import.
func (im *importer) complete(ctx context.Context, p *put, size int64, repeated bool, err error) error {
	im.lastSuccess.Store(time.Now().UnixNano())
	switch {
	case err == nil && (!repeated || p.attempts > 0 || im.fresh):
		im.countStored(p, size)
		return nil
	case err == nil, errors.Is(err, client.ErrExists), errors.Is(err, client.ErrVersionMismatch):
		return im.completeTaken(ctx, p, size, repeated)
	case errors.Is(err, client.ErrDiskFull), errors.Is(err, client.ErrMemoryFull):
		return fmt.Errorf("the server has no space for %s; free some space, then run again with --resume: %w",
			displayName(p.job.item.Path), err)
	}
	im.fail(failRefused, p.job.item.Path, err)
	return nil
}

// completeTaken determines what already has the id of a file: the file itself, an older state of the file, or another
// file.
func (im *importer) completeTaken(ctx context.Context, p *put, size int64, repeated bool) error {
	patient, cancel := context.WithTimeout(ctx, importPatience)
	defer cancel()
	record, err := im.conn.Get(patient, p.job.key, &client.GetOptions{MetadataOnly: true})
	if errors.Is(err, client.ErrNotFound) {
		if repeated {
			err = errors.New("an earlier import stored it and it was deleted since; give another --import-id to store it again")
		} else {
			err = errors.New("it was deleted by somebody else during the import; run again with --resume")
		}
		im.fail(failChanged, p.job.item.Path, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking up id %d: %w", p.job.key.ID, err)
	}
	there := im.compare(p.job, p.stamp, record)
	switch {
	case there == nil && (p.attempts > 0 || repeated && (im.opts.Resume || im.opts.Update)):
		im.countStored(p, size) // stored by an earlier attempt of this run, after the lookup
		return nil
	case there == nil && repeated: // stored by an earlier run with the same import id
		im.countThere(size)
		return nil
	}
	im.countTaken(p.job, size, there)
	return nil
}

// fileStamp holds the properties by which a file is recognised.
type fileStamp struct {
	name  string // the path of the file, including the prefix
	size  int64
	mtime string
	mode  uint32
	link  bool // the file is a symbolic link, which has no mode
}

var (
	errOtherFile = errors.New("another file has its id")
	errOlder     = errors.New("an older state of it is stored")
)

// compare compares a record with a file. It returns nil if the record is this file. Otherwise the error wraps
// errOtherFile or errOlder.
func (im *importer) compare(j job, file fileStamp, r client.Record) error {
	attributes := r.Attributes
	name, ok := attributes[attributePath]
	if !ok {
		return fmt.Errorf("%w: record %d, which no import made", errOtherFile, j.key.ID)
	}
	if string(name) != file.name {
		return fmt.Errorf("%w: id %d is %s", errOtherFile, j.key.ID, displayName(string(name)))
	}
	mode, _ := modeOf(r, true)
	if r.Size != file.size || string(attributes[attributeMtime]) != file.mtime || isSymlink(r) != file.link ||
		!file.link && mode != file.mode {
		return fmt.Errorf("%w: %d bytes of %s, mode %04o", errOlder, r.Size, attributes[attributeMtime], mode)
	}
	return nil
}

// countTaken counts a file whose id is taken. The argument there is the result of compare.
func (im *importer) countTaken(j job, size int64, there error) {
	switch {
	case errors.Is(there, errOtherFile):
		im.fail(failCollision, j.item.Path, there)
	case !im.opts.Resume && !im.opts.Update:
		im.fail(failExists, j.item.Path, errors.New(
			"an earlier import stored it (--resume goes on where one ended, --update replaces what changed)"))
	case errors.Is(there, errOlder):
		im.fail(failChanged, j.item.Path, fmt.Errorf("%w (--update replaces it)", there))
	default:
		im.countThere(size)
	}
}

func (im *importer) countThere(size int64) {
	im.there.Add(1)
	im.seenFiles.Add(1)
	im.seenBytes.Add(size)
}

// lookUp asks the server, in batches, which files it already has. It sends the files that have to be stored to the
// channel ready.
func (im *importer) lookUp(ctx context.Context, ready chan<- job) error {
	const most = 256
	batch := make([]job, 0, most)
	flush := func() error {
		defer func() { batch = batch[:0] }()
		records, err := im.fetch(ctx, batch)
		if err != nil {
			return err
		}
		for i, j := range batch {
			if !im.decide(&j, records[i]) {
				continue
			}
			if err := pass(ctx, ready, j); err != nil {
				return err
			}
		}
		return nil
	}
	for j := range im.jobs {
		if batch = append(batch, j); len(batch) == most {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(batch) == 0 {
		return nil
	}
	return flush()
}

// decide compares a file with the existing record of its id, and reports whether to store the file.
func (im *importer) decide(j *job, there client.GetOutcome) bool {
	if errors.Is(there.Err, client.ErrNotFound) {
		return true
	}
	info, err := im.root.lstat(j.item.Path)
	if err != nil {
		im.fail(failUnreadable, j.item.Path, err)
		return false
	}
	s, record := stateOf(info), there.Record
	unsized := s.size == 0 && s.mode.IsRegular() && record.Size > 0
	if unsized {
		s.size = record.Size // the reported size is useless, so the content is compared
	}
	what := im.compare(*j, im.stampOf(*j, s), record)
	switch {
	case what == nil && (unsized || im.opts.Checksum) && im.opts.Update:
		j.there, j.same = &record, true
		return true
	case errors.Is(what, errOlder) && im.opts.Update,
		errors.Is(what, errOtherFile) && im.opts.Delete && im.gone(record):
		j.there = &record
		return true
	}
	im.countTaken(*j, info.Size(), what)
	return false
}

// fetch reads the records of a batch without data. An outcome has an error only if the record does not exist.
func (im *importer) fetch(ctx context.Context, batch []job) ([]client.GetOutcome, error) {
	items := make([]client.GetItem, len(batch))
	for i, j := range batch {
		items[i] = client.GetItem{Key: j.key, Options: client.GetOptions{MetadataOnly: true}}
	}
	ctx, cancel := context.WithTimeout(ctx, importPatience)
	defer cancel()
	outcomes := im.conn.BatchGet(ctx, items)
	for _, outcome := range outcomes {
		if outcome.Err != nil && !errors.Is(outcome.Err, client.ErrNotFound) {
			return nil, fmt.Errorf("looking up what is there: %w", outcome.Err)
		}
	}
	im.lastSuccess.Store(time.Now().UnixNano())
	return outcomes, nil
}
