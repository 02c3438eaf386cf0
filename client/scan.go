package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
)

// ScanOptions are the options of Scan. The zero value scans all groups, one after another.
type ScanOptions struct {
	// Group is the group to scan. The default is all groups.
	Group string
	// Cursor is a cursor of an earlier scan. This scan resumes after it. Cursor cannot be combined with Group, Split or
	// Parallel.
	Cursor []byte
	// Split, if not nil, is the part to scan, as returned by PlanScan. Split cannot be combined with Group, Cursor or
	// Parallel.
	Split *Split
	// View is the ID of a view to scan: of Group, or of all groups of the view. Cursor and Split cannot be combined with
	// it, because they name their view themselves.
	View string
	// MetadataOnly omits the data.
	MetadataOnly bool
	// Parallel is the number of splits scanned at a time. With 0 or 1, the scan is not split, and records are yielded
	// in log order.
	Parallel int
	// SplitBytes is the target size of a split, with Parallel. The default is 256 MiB.
	SplitBytes int64
	// OnCursor is called with a cursor. A scan that starts from this cursor continues after all records yielded so far.
	// OnCursor is not called with Parallel.
	OnCursor func(cursor []byte)
}

// Split is a part of a group's snapshot. Any process may scan it independently. It can be sent to other processes as
// JSON.
type Split struct {
	// Group is the group to which the split belongs.
	Group string
	// Token is opaque. The server keeps the snapshot for 10 minutes after its last use. After that, a scan returns
	// ErrCursorExpired.
	Token []byte
	// Addresses lists the addresses (host:port) of the shards that hold the split, best first, so that the work can run
	// near them. With Config.Direct, the scan goes to these shards.
	Addresses []string
	// Nodes lists the names of the nodes of these shards, in the order of Addresses. A name is empty if it is not known.
	Nodes []string
	// Bytes is the approximate stored size.
	Bytes int64
	// Records is the approximate number of records.
	Records int64
}

// PlanScanOptions are the options of PlanScan. The zero value plans a scan of all groups.
type PlanScanOptions struct {
	// Groups lists the groups to scan. The default is all groups.
	Groups []string
	// SplitBytes is the target size of each split, 1 MiB to 1 TiB. The default is 256 MiB.
	SplitBytes int64
	// View is the ID of a view to scan instead of new snapshots. Without Groups, all groups of the view are scanned. The
	// splits are valid as long as the view, and each lists all copies of its group.
	View string
	// Shared makes splits that any caller may scan who may scan their group. Otherwise only this caller may.
	Shared bool
}

// PlanScan takes a snapshot of each group and divides it into splits. Together the splits hold the newest version of
// every record exactly once. Batch systems use PlanScan to distribute the work. To plan and scan in a single process,
// use Scan with Parallel.
func (c *Client) PlanScan(ctx context.Context, options *PlanScanOptions) ([]Split, error) {
	o := orZero(options)
	plan, err := unary(ctx, c, call{op: "plan a scan"}, recordv1.NewRecordServiceClient,
		recordv1.RecordServiceClient.PlanScan, &recordv1.PlanScanRequest{Groups: o.Groups, SplitBytes: o.SplitBytes,
			View: o.View, Shared: o.Shared},
		grpc.MaxCallRecvMsgSize(routingBytes))
	if err != nil {
		return nil, err
	}
	splits := make([]Split, 0, len(plan.GetSplits()))
	for _, s := range plan.GetSplits() {
		splits = append(splits, Split{Group: s.GetGroup(), Token: s.GetSplit(), Addresses: s.GetAddresses(),
			Nodes: s.GetNodes(), Bytes: s.GetBytes(), Records: s.GetRecords()})
	}
	return splits, nil
}

// Scan yields the newest version of every record in a snapshot of each group. A broken stream resumes from its cursor,
// so each record is yielded once. Records above 1 MiB are yielded without data (HasData is false). Use Download with
// the version to read them. An error ends the scan, except for damaged entries, which are reported at the end as
// ErrDataLoss.
func (c *Client) Scan(ctx context.Context, options *ScanOptions) iter.Seq2[Record, error] {
	o := orZero(options)
	return func(yield func(Record, error) bool) {
		switch {
		case len(o.Cursor) > 0 && (o.Group != "" || o.Split != nil || o.Parallel > 1):
			yield(Record{}, invalid("scan", "Cursor excludes Group, Split and Parallel"))
			return
		case o.Split != nil && (o.Group != "" || o.Parallel > 1):
			yield(Record{}, invalid("scan", "Split excludes Group and Parallel"))
			return
		case o.View != "" && (o.Split != nil || len(o.Cursor) > 0):
			yield(Record{}, invalid("scan", "View excludes Cursor and Split, which name their view"))
			return
		case o.Split != nil && len(o.Split.Token) == 0:
			yield(Record{}, invalid("scan", "Split has no Token: take it from PlanScan"))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if o.Parallel > 1 {
			c.scanSplits(ctx, o, yield)
			return
		}
		s := &scanStream{client: c, request: recordv1.ScanRequest{Group: o.Group, Cursor: o.Cursor,
			MetadataOnly: o.MetadataOnly, View: o.View}}
		s.attempts = c.attempts(call{op: "scan", group: o.Group})
		if o.Split != nil {
			s.request.Split, s.addresses = o.Split.Token, o.Split.Addresses
		}
		err := s.run(ctx, func(records []Record) bool {
			for _, r := range records {
				if !yield(r, nil) {
					return false
				}
			}
			if o.OnCursor != nil {
				o.OnCursor(s.cursor)
			}
			return true
		})
		if err != nil {
			yield(Record{}, err)
		}
	}
}

// scanStream is the stream of a scan. It is resumed if it breaks.
type scanStream struct {
	client   *Client
	request  recordv1.ScanRequest
	attempts attempts
	cursor   []byte
	// addresses lists the shards that hold the split, best first. It is nil if any gateway can serve the scan.
	addresses []string
}

// run passes the records of each message to the function take. If take returns false, run stops and returns nil.
func (s *scanStream) run(ctx context.Context, take func([]Record) bool) error {
	for {
		to, err := s.target()
		if err != nil {
			return newError("scan", err, false)
		}
		stopped, err := s.once(ctx, to, take)
		if stopped || err == nil {
			return nil
		}
		if err := s.attempts.failed(ctx, to, err, true); err != nil {
			return err
		}
	}
}

// target returns the destination of the next attempt. With Direct, the first attempt and every second one after it go
// to the best shard for the split.
func (s *scanStream) target() (target, error) {
	if s.client.cfg.Direct && len(s.addresses) > 0 && s.attempts.N()%2 == 0 {
		if to, err := s.client.conn(s.addresses[0]); err == nil && !to.pulse.Silent() {
			return target{conn: to}, nil
		}
	}
	return s.client.target(s.attempts.what, s.attempts.N())
}

func (s *scanStream) once(ctx context.Context, to target, take func([]Record) bool) (stopped bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.cursor != nil {
		s.request.Cursor, s.request.Group, s.request.Split, s.request.View = s.cursor, "", nil, ""
	}
	s.request.RoutingEpoch = to.epoch
	stream, err := recordv1.NewRecordServiceClient(to.conn).Scan(ctx, &s.request)
	if err != nil {
		return false, err
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		records := make([]Record, len(message.GetRecords()))
		for i, r := range message.GetRecords() {
			if records[i], err = checked(&call{op: "scan"}, r); err != nil {
				return false, err
			}
		}
		s.cursor = message.GetCursor()
		s.attempts.Progress()
		if !take(records) {
			return true, nil
		}
	}
}

// scanResult is one message from the scan of a split, or the error with which that scan ended.
type scanResult struct {
	records []Record
	err     error
}

// scanEach scans splits, o.Parallel at a time, and returns when all scans have ended.
func (c *Client) scanEach(ctx context.Context, o ScanOptions, splits []Split, results chan<- scanResult) {
	give := func(r scanResult) bool {
		select {
		case results <- r:
			return true
		case <-ctx.Done():
			return false
		}
	}
	var workers errgroup.Group
	workers.SetLimit(o.Parallel)
	for _, split := range splits {
		workers.Go(func() error {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the caller takes no more records
			}
			s := &scanStream{
				client: c, request: recordv1.ScanRequest{Split: split.Token, MetadataOnly: o.MetadataOnly},
				attempts: c.attempts(call{op: "scan"}), addresses: split.Addresses,
			}
			if err := s.run(ctx, func(records []Record) bool { return give(scanResult{records: records}) }); err != nil {
				give(scanResult{err: err})
			}
			return nil
		})
	}
	_ = workers.Wait() // the workers return no errors
}

// scanSplits scans several splits at a time. Memory is bounded, because each split's scan waits until its last message
// has been consumed.
func (c *Client) scanSplits(ctx context.Context, o ScanOptions, yield func(Record, error) bool) {
	options := &PlanScanOptions{SplitBytes: o.SplitBytes, View: o.View}
	if o.Group != "" {
		options.Groups = []string{o.Group}
	}
	splits, err := c.PlanScan(ctx, options)
	if err != nil {
		yield(Record{}, err)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	results := make(chan scanResult)
	all.Go(func() {
		defer close(results)
		c.scanEach(ctx, o, splits, results)
	})
	var damaged error
	for r := range results {
		if errors.Is(r.err, ErrDataLoss) {
			damaged = r.err
			continue
		}
		if r.err != nil {
			yield(Record{}, r.err)
			return
		}
		for _, record := range r.records {
			if !yield(record, nil) {
				return
			}
		}
	}
	if err := ctx.Err(); err != nil && damaged == nil {
		damaged = newError("scan", err, false)
	}
	if damaged != nil {
		yield(Record{}, damaged)
	}
}
