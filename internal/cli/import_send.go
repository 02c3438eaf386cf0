package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
)

// batchStream is a BatchPut stream.
type batchStream = grpc.BidiStreamingClient[recordv1.BatchPutRequest, recordv1.BatchPutResponse]

// sender stores what the readers give, batch by batch over a stream of its own. Several senders run side by side, so one
// batch at a time per sender keeps the server busy.
type sender struct {
	im     *importer
	stream batchStream
	cancel context.CancelFunc
	again  []*put // to be sent once more
}

func (im *importer) send(ctx context.Context) error {
	s := &sender{im: im, cancel: func() {}}
	defer func() { s.cancel() }()
	for {
		batch := s.again
		s.again = nil
		if len(batch) == 0 {
			if batch = s.collect(ctx); len(batch) == 0 {
				return context.Cause(ctx)
			}
		}
		if err := s.sendBatch(ctx, batch); err != nil {
			return err
		}
	}
}

// collect waits for one put and takes what else is there at once. Nothing: there will be no more.
func (s *sender) collect(ctx context.Context) []*put {
	var batch []*put
	var bytes int64
	for bytes < batchBytes && len(batch) < batchPuts {
		var p *put
		var ok bool
		if len(batch) == 0 {
			select {
			case p, ok = <-s.im.puts:
			case <-ctx.Done():
			}
		} else {
			select {
			case p, ok = <-s.im.puts:
			default:
			}
		}
		if !ok {
			break
		}
		batch = append(batch, p)
		bytes += int64(len(p.request.GetData())) + 512
	}
	return batch
}

// sendBatch sends a batch and settles every put of it, or notes it for another try. An error ends the import.
func (s *sender) sendBatch(ctx context.Context, batch []*put) error {
	results, err := s.exchange(ctx, batch)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.cancel() // the stream is gone; the next batch opens a new one
		s.stream = nil
		if !Retryable(err) {
			return fmt.Errorf("storing files: %w", err)
		}
		s.again = batch
		for _, p := range batch {
			p.attempts++ // any of them may have been stored
		}
		return s.im.waitRetry(ctx, batch[0].attempts, err)
	}
	var last error
	for i, result := range results {
		err := status.ErrorProto(result.GetStatus())
		if Retryable(err) {
			batch[i].attempts++
			s.again = append(s.again, batch[i])
			last = err
			continue
		}
		p := batch[i]
		size := int64(len(p.request.GetData()))
		if err := s.im.settle(ctx, p, size, result.GetPut().GetRepeated(), err); err != nil {
			return err
		}
		s.im.seenBytes.Add(size)
		s.im.memory.Release(p.reserved)
	}
	if last != nil {
		return s.im.waitRetry(ctx, s.again[0].attempts, last)
	}
	return nil
}

func (s *sender) exchange(ctx context.Context, batch []*put) ([]*recordv1.BatchPutResult, error) {
	if s.stream == nil {
		streamCtx, cancel := context.WithCancel(ctx)
		stream, err := s.im.conn.Records.BatchPut(streamCtx)
		if err != nil {
			cancel()
			return nil, err
		}
		s.stream, s.cancel = stream, cancel
	}
	request := &recordv1.BatchPutRequest{Puts: make([]*recordv1.PutRequest, len(batch))}
	for i, p := range batch {
		request.Puts[i] = p.request
	}
	// A failed Send hides the reason; Recv has it.
	sendErr := s.stream.Send(request)
	response, err := s.stream.Recv()
	if err != nil {
		if code := status.Code(err); code == codes.Unknown && sendErr != nil {
			return nil, status.Error(codes.Unavailable, "the stream ended: "+err.Error())
		}
		return nil, err
	}
	if len(response.GetResults()) != len(batch) {
		return nil, fmt.Errorf("%d results came for %d files", len(response.GetResults()), len(batch))
	}
	return response.GetResults(), nil
}

// waitRetry waits a moment before another try, and gives up when the server has not answered for importPatience.
func (im *importer) waitRetry(ctx context.Context, attempts int, err error) error {
	silent := time.Since(time.Unix(0, im.lastSuccess.Load()))
	if silent > importPatience {
		return fmt.Errorf("the server has stored nothing for %v; run again with --resume when it is back: %w", silent.Round(time.Second), err)
	}
	select {
	case <-time.After(min(time.Second, 20*time.Millisecond<<min(attempts, 6))):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settle ends the way of one file: it is stored (err nil), or was refused. An error returned ends the import.
func (im *importer) settle(ctx context.Context, p *put, size int64, repeated bool, err error) error {
	im.lastSuccess.Store(time.Now().UnixNano())
	reason := Reason(err)
	switch {
	case err == nil && (!repeated || p.attempts > 0 || im.fresh):
		im.countStored(p.job, size)
		if p.job.ifVersion != "" {
			im.updated.Add(1)
		}
		return nil
	case err == nil, status.Code(err) == codes.AlreadyExists, status.Code(err) == codes.Aborted:
		return im.settleTaken(ctx, p, size, repeated)
	case reason == "DISK_FULL", reason == "MEMORY_FULL":
		return fmt.Errorf("the server has no room for %s; make room, then run again with --resume: %w", DisplayName(p.job.item.Path), err)
	}
	im.fail(FailRefused, p.job.item.Path, err)
	return nil
}

// settleTaken finds out what has the id of a file already: the file itself, an older state of it, or another file.
func (im *importer) settleTaken(ctx context.Context, p *put, size int64, repeated bool) error {
	var response *recordv1.GetResponse
	err := im.patiently(ctx, func() (err error) {
		response, err = im.conn.Records.Get(ctx, &recordv1.GetRequest{Key: p.job.key, MetadataOnly: true})
		return err
	})
	if status.Code(err) == codes.NotFound {
		if repeated {
			err = errors.New("an earlier import stored it and it was deleted since; give another --import-id to store it again")
		} else {
			err = errors.New("it was deleted by somebody else during the import; run again with --resume")
		}
		im.fail(FailChanged, p.job.item.Path, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking up id %d: %w", p.job.key.GetId(), err)
	}
	there := im.compare(p.job, fileStamp{name: join(im.opts.Prefix, p.job.item.Path), size: size, mtime: p.mtime}, response.GetRecord())
	switch {
	case there == nil && p.attempts > 0:
		im.countStored(p.job, size) // by an earlier try of this run
		return nil
	case there == nil && repeated: // by an earlier run with the same import id
		im.countThere(size)
		return nil
	}
	im.settleThere(p.job, size, there)
	return nil
}

// patiently repeats a read as long as the import waits for the server.
func (im *importer) patiently(ctx context.Context, do func() error) error {
	return Retry(ctx, importPatience, do)
}

// fileStamp is how a file is recognised.
type fileStamp struct {
	name  string // with the prefix
	size  int64
	mtime string
}

var (
	errOtherFile = errors.New("another file has its id")
	errOlder     = errors.New("an older state of it is stored")
)

// compare says what a record is to a file: nil: it is the file; or an error that wraps errOtherFile or errOlder.
func (im *importer) compare(j job, file fileStamp, r *recordv1.Record) error {
	attributes := r.GetAttributes()
	name, ok := attributes[AttributePath]
	if !ok {
		return fmt.Errorf("%w: record %d, which no import made", errOtherFile, j.key.GetId())
	}
	if string(name) != file.name {
		return fmt.Errorf("%w: id %d is %s", errOtherFile, j.key.GetId(), DisplayName(string(name)))
	}
	if r.GetSizeBytes() != file.size || string(attributes[AttributeMtime]) != file.mtime {
		return fmt.Errorf("%w: %d bytes of %s", errOlder, r.GetSizeBytes(), attributes[AttributeMtime])
	}
	return nil
}

// settleThere counts a file whose id is taken, there being what compare said.
func (im *importer) settleThere(j job, size int64, there error) {
	switch {
	case errors.Is(there, errOtherFile):
		im.fail(FailCollision, j.item.Path, there)
	case !im.opts.Resume && !im.opts.Update:
		im.fail(FailExists, j.item.Path, errors.New("an earlier import stored it (--resume goes on where one ended, --update replaces what changed)"))
	case errors.Is(there, errOlder):
		im.fail(FailChanged, j.item.Path, fmt.Errorf("%w (--update replaces it)", there))
	default:
		im.countThere(size)
	}
}

func (im *importer) countThere(size int64) {
	im.there.Add(1)
	im.seenFiles.Add(1)
	im.seenBytes.Add(size)
}

// lookUpStage asks the server, many at a time, which files it has already, so that a resumed import need not read and
// send them. What is to be stored goes on to the channel returned.
func (im *importer) lookUpStage(ctx context.Context, g *errgroup.Group) chan job {
	ready := make(chan job, 64)
	const workers = 4
	done := make(chan struct{}, workers)
	for range workers {
		g.Go(func() error {
			defer func() { done <- struct{}{} }()
			return im.lookUp(ctx, ready)
		})
	}
	g.Go(func() error {
		for range workers {
			<-done
		}
		close(ready)
		return nil
	})
	return ready
}

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
			select {
			case ready <- j:
			case <-ctx.Done():
				return context.Cause(ctx)
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

// decide compares a file with the record that has its id, nil where there is none, and tells whether to store the file.
func (im *importer) decide(j *job, r *recordv1.Record) bool {
	if r == nil || im.opts.DryRun {
		return true
	}
	info, err := os.Lstat(im.fileName(j.item.Path))
	if err != nil {
		im.fail(FailUnreadable, j.item.Path, err)
		return false
	}
	there := im.compare(*j, fileStamp{name: join(im.opts.Prefix, j.item.Path), size: info.Size(), mtime: formatMtime(info.ModTime())}, r)
	if errors.Is(there, errOlder) && im.opts.Update {
		j.ifVersion = r.GetVersion()
		return true
	}
	im.settleThere(*j, info.Size(), there)
	return false
}

// fetch reads the records of a batch without data: nil where there is none.
func (im *importer) fetch(ctx context.Context, batch []job) ([]*recordv1.Record, error) {
	records := make([]*recordv1.Record, len(batch))
	if im.opts.DryRun {
		return records, nil
	}
	request := &recordv1.BatchGetRequest{Gets: make([]*recordv1.GetRequest, len(batch))}
	for i, j := range batch {
		request.Gets[i] = &recordv1.GetRequest{Key: j.key, MetadataOnly: true}
	}
	err := im.patiently(ctx, func() error {
		clear(records)
		return im.conn.batchGet(ctx, request, func(result *recordv1.BatchGetResult) error {
			switch err := status.ErrorProto(result.GetStatus()); {
			case status.Code(err) == codes.NotFound:
				return nil
			case err != nil:
				return err
			}
			records[result.GetPosition()] = result.GetRecord()
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("looking up what is there: %w", err)
	}
	im.lastSuccess.Store(time.Now().UnixNano())
	return records, nil
}
