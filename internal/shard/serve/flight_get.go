package serve

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/call/cursor"
	arrow "sheaf.dev/sheaf/internal/call/flight"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

const (
	// flightChunk is the number of ids that count as one call in the quotas, and for which a group is found once.
	flightChunk = BatchGetsMax
	// flightWindow is the number of records that several goroutines read before the first of them is sent. They share a
	// buffer of at most flightWindowBytes, so there are fewer of them if they are large.
	flightWindow      = 64
	flightWindowBytes = 1 << 20
	// flightMetadataBytes is the size up to which a record is in that buffer although only its metadata are needed. Of a
	// larger one, the log reads the data into memory of its own.
	flightMetadataBytes = 16 << 10
)

// flightGet is the state of one DoGet of ids.
type flightGet struct {
	server  *Server
	stream  grpc.ServerStream
	command *arrow.GetCommand
	batch   *arrow.Batch
	held    *message.Held
	readers int // goroutines that read at the same time; 1 if the data are in memory

	named   Group // the group of the command; nil if the ids determine the groups
	view    uuid.UUID
	views   map[Group]*groupView
	groups  map[Group]error
	tenants batchTenants
	reads   []read
	errs    []error
	begun   bool  // the schema was sent
	granted int64 // size of the messages for which memory was reserved
	records int
	bytes   int64
}

// getIDs reads records in the order of their ids.
func (s *flightServer) getIDs(command *arrow.GetCommand, stream grpc.ServerStream) error {
	ctx := stream.Context()
	n := command.Len()
	g := &flightGet{server: s.Server, stream: stream, command: command, held: message.HeldOf(ctx), readers: 1}
	if s.opts.Residency != group.Resident {
		g.readers = min(batchReadersMax, (n+batchReadsPerFork-1)/batchReadsPerFork)
	}
	arena := int64(batchArenaMin)
	if command.Columns.NeedsData() {
		arena = min(max(message.RoundUp(int64(n)*batchDataBytes), batchArenaMin), arrow.BatchBytesMax)
	}
	chunk := min(n, flightChunk)
	prepared := int64(chunk) * flightReadBytes
	if g.readers > 1 {
		prepared += flightWindowBytes
	}
	// All of it is asked for at once. Otherwise, many calls that begin together could each get a part, and then refuse one
	// another the rest.
	if err := g.held.More(prepared + flightMessages*arena); err != nil {
		return err
	}
	g.granted = arena
	g.batch = arrow.NewBatch(command.Columns, int(arena))
	defer g.batch.Drop()
	g.reads, g.errs = make([]read, chunk), make([]error, chunk)
	if command.View != "" {
		var v answer.Violations
		var valid bool
		if g.view, valid = viewID(command.View, &v); !valid {
			return v.Err()
		}
	}
	if command.Group != "" {
		var err error
		if g.named, err = s.Asked(ctx, access.Get, command.Group, "group"); err != nil {
			return err
		}
	}
	for first := 0; first < n; first += chunk {
		if err := g.chunk(ctx, first, min(chunk, n-first)); err != nil {
			return answer.Of(err, answer.Where{Group: command.Group})
		}
	}
	if err := g.flush(); err != nil {
		return err
	}
	s.metrics.method(doGet).moved(g.records, g.bytes)
	return nil
}

// flightReadBytes is the memory of one read that was prepared.
const flightReadBytes = 256

// chunk reads n ids, from the position first on.
func (g *flightGet) chunk(ctx context.Context, first, n int) error {
	if err := g.prepare(ctx, first, n); err != nil {
		return err
	}
	defer g.tenants.leave()
	if err := g.tenants.enter(ctx, int64(n)*flightReadBytes); err != nil {
		return err
	}
	if g.readers == 1 {
		for i := range n {
			if err := g.one(ctx, first, i); err != nil {
				return err
			}
		}
		return nil
	}
	for from := 0; from < n; {
		slots, size := g.slots(from, n)
		if err := g.window(ctx, first, from, slots, size); err != nil {
			return err
		}
		from += len(slots)
	}
	return nil
}

// prepare finds the groups of n ids, and waits until reads of each group see every acknowledged write.
func (g *flightGet) prepare(ctx context.Context, first, n int) error {
	g.groups, g.views, g.tenants = map[Group]error{}, map[Group]*groupView{}, nil
	var key recordv1.RecordKey
	for i := range n {
		r := &g.reads[i]
		*r, g.errs[i] = read{}, nil
		key.Id = g.command.ID(first + i)
		if g.named != nil && g.server.inGroup(g.named, key.Id) {
			r.served, r.where = g.named, answer.Where{Group: g.named.Name(), ID: key.Id}
		} else {
			var v answer.Violations
			key.Group = g.command.Group
			sv, err := g.server.find(ctx, access.Get, &key, 0, &v, "group")
			r.where = answer.Where{Group: cmp.Or(g.command.Group, g.server.hashGroup(key.Id)), ID: key.Id}
			if g.errs[i] = v.Or(err); g.errs[i] != nil {
				continue
			}
			r.served = sv
		}
		r.options.MetadataOnly = !g.command.Columns.NeedsData()
		err, done := g.groups[r.served]
		if !done {
			err = g.barrier(ctx, r.served)
			g.groups[r.served] = err
			g.tenants.add(tenantOf(r.served, g.view != uuid.Nil))
		}
		if err != nil && g.named != nil {
			return err
		}
		r.view, g.errs[i] = g.views[r.served], err
	}
	return nil
}

// barrier waits until reads of a group see every acknowledged write, or finds the view of the group.
func (g *flightGet) barrier(ctx context.Context, sv Group) (err error) {
	if g.view == uuid.Nil {
		return sv.Barrier(ctx)
	}
	view, err := g.server.inView(ctx, sv, g.view)
	if err == nil {
		// A snapshot that cannot be opened fails here, where an error can still be about the whole group.
		err = view.fail(view.with(ctx, func(group.ScanID) error { return nil }), answer.Where{Group: sv.Name()})
	}
	g.views[sv] = view
	return err
}

// tail returns the buffer into which the next record is read. If the batch has no room for a record as large as the
// largest one so far, the record gets memory of its own, and begins the next batch.
func (g *flightGet) tail() []byte {
	if g.command.Columns.NeedsData() {
		return g.batch.Tail()
	}
	return nil
}

// read performs a read that was prepared.
func (g *flightGet) read(ctx context.Context, i int, buffer []byte) (group.Record, error) {
	if g.errs[i] != nil {
		return group.Record{}, g.errs[i]
	}
	r := &g.reads[i]
	r.options.Buffer = buffer
	return r.record(ctx)
}

// one reads an id into the batch.
func (g *flightGet) one(ctx context.Context, first, i int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rec, err := g.read(ctx, i, g.tail())
	return g.add(ctx, first+i, &g.reads[i], &rec, err)
}

// slots returns the sizes of the buffers for the reads of the next window, and their sum. There is at least one read,
// and the sum exceeds flightWindowBytes only if there is no other.
func (g *flightGet) slots(from, n int) (slots []int64, sum int64) {
	slots = make([]int64, 0, flightWindow)
	for i := from; i < min(n, from+flightWindow); i++ {
		size := int64(0)
		if g.errs[i] == nil {
			size = g.reads[i].served.Log().LengthBound(g.reads[i].where.ID)
		}
		if size > flightMetadataBytes && !g.command.Columns.NeedsData() {
			size = 0
		}
		if len(slots) > 0 && sum+size > flightWindowBytes {
			break
		}
		slots, sum = append(slots, size), sum+size
	}
	return slots, sum
}

// window reads one id for each slot with several goroutines, and adds the records in their order.
func (g *flightGet) window(ctx context.Context, first, from int, slots []int64, sum int64) error {
	n := len(slots)
	if n == 1 {
		return g.one(ctx, first, from) // without a buffer between, which might be too large
	}
	arena := message.Pool.Get(int(sum))
	defer message.Pool.Put(arena)
	buffers, rest := make([][]byte, n), *arena
	for i, size := range slots {
		buffers[i], rest = rest[:size:size], rest[size:]
	}
	records, errs := make([]group.Record, n), make([]error, n)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	var apart sync.Mutex
	more := int64(0) // memory of records that are not in their buffers
	defer func() { _ = g.held.More(-more) }()
	part := func(reader int) {
		var err error
		defer func() {
			if err != nil {
				cancel(err)
			}
		}()
		defer g.server.contain(g.server.metrics.method(doGet), &err)
		for i := reader; i < n && ctx.Err() == nil; i += g.readers {
			records[i], errs[i] = g.read(ctx, from+i, buffers[i])
			// A record that was replaced by a larger one meanwhile is not in its buffer.
			size := format.FrameBytes(len(records[i].Attributes), len(records[i].Data))
			if errs[i] == nil && size > slots[i] {
				if err = g.held.More(size); err != nil {
					return
				}
				apart.Lock()
				more += size
				apart.Unlock()
			}
		}
	}
	for reader := 1; reader < min(g.readers, n); reader++ {
		wait.Go(func() { part(reader) })
	}
	part(0)
	wait.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	for i := range n {
		if err := g.add(ctx, first+from+i, &g.reads[from+i], &records[i], errs[i]); err != nil {
			return err
		}
	}
	return nil
}

// add adds a row for the outcome of a read. It sends the batch first if the row does not fit.
func (g *flightGet) add(ctx context.Context, position int, r *read, rec *group.Record, err error) error {
	row := arrow.Row{Group: r.where.Group, ID: g.command.ID(position)}
	if err == nil {
		err = fillRow(&row, rec, g.command.Columns)
	}
	if err != nil {
		err = r.fail(err)
		row.Status = wordOf(err)
	} else if t := r.tenant(); t != nil {
		if err := pass(ctx, t, movedOf(rec), arrow.BatchBytesMax); err != nil {
			return err
		}
	}
	bound := arrow.Bound(row.Group, row.Attributes, len(row.Data))
	if g.batch.IsFull(bound) {
		if err := g.send(g.batch.TakeBefore(&row, nil)); err != nil {
			return err
		}
	}
	if err := g.grow(g.batch.Bytes() + bound); err != nil {
		return err
	}
	g.batch.Add(&row)
	g.records++
	g.bytes += int64(len(row.Data))
	return nil
}

// flightMessages is the number of messages for which a call has memory: one is being filled, one waits to be sent, and
// the data of the next record may be apart from both.
const flightMessages = 3

// grow reserves memory for messages of up to size bytes.
func (g *flightGet) grow(size int64) error {
	size = message.RoundUp(size)
	if size <= g.granted {
		return nil
	}
	if err := g.held.More(flightMessages * (size - g.granted)); err != nil {
		return err
	}
	g.granted = size
	return nil
}

// flush sends the rows that remain, or at least the schema.
func (g *flightGet) flush() error {
	if g.batch.Rows() == 0 {
		return g.begin()
	}
	return g.send(g.batch.Take(nil))
}

// begin sends the schema, unless it was sent.
func (g *flightGet) begin() error {
	if g.begun {
		return nil
	}
	g.begun = true
	return g.stream.SendMsg(arrow.Schema())
}

func (g *flightGet) send(m *arrow.Message) error {
	if err := g.begin(); err != nil {
		return err // the garbage collector takes the buffers
	}
	return g.stream.SendMsg(m)
}

// fillRow fills in a row for a record. The row refers to the data of the record.
func fillRow(row *arrow.Row, rec *group.Record, columns arrow.Columns) error {
	row.Version, row.Timestamp, row.CommitTime = cursor.Version(rec.Index), rec.Timestamp, rec.CommitTime
	row.Size = rec.Size
	row.Filled = arrow.AllColumns &^ (1<<arrow.CRC32C | 1<<arrow.Data)
	if columns.Has(arrow.Attributes) && len(rec.Attributes) > 0 {
		attributes, err := format.DecodeAttributes(rec.Attributes)
		if err != nil {
			row.Filled = 0
			return err
		}
		row.Attributes = arrow.Sorted(attributes)
	}
	switch {
	case !columns.NeedsData():
	case rec.Blob != nil:
		row.Status = reason.UseDownload
	default:
		row.Filled |= 1<<arrow.CRC32C | 1<<arrow.Data
		if columns.Has(arrow.CRC32C) {
			row.CRC32C = crc32c.Of(rec.Data)
		}
		if columns.Has(arrow.Data) {
			row.Data = rec.Data
		}
	}
	return nil
}

// wordOf returns the status of a row for an error.
func wordOf(err error) string {
	if e, ok := errors.AsType[*answer.Error](err); ok && e.Reason != "" {
		return e.Reason
	}
	return reason.Of(err)
}
