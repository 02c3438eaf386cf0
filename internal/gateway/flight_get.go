package gateway

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	arrow "sheaf.dev/sheaf/internal/call/flight"
	"sheaf.dev/sheaf/internal/placement"
)

const (
	// flightWindowFirst is the number of records that a DoGet reads first. Later windows are as large as flightWindowBytes
	// allow, by the size of the records so far.
	flightWindowFirst = 128
	flightWindowMin   = 16
	flightWindowBytes = 4 << 20
)

// flightMany is a DoGet of ids of several groups. It reads windows of ids by BatchGet, which knows which calls to
// repeat, and sends their rows in order.
type flightMany struct {
	g       *Gateway
	stream  grpc.ServerStream
	command *arrow.GetCommand
	batch   *arrow.Batch
	held    *message.Held
	begun   bool
}

func (g *Gateway) flightGetMany(stream grpc.ServerStream, command *arrow.GetCommand) error {
	f := &flightMany{g: g, stream: stream, command: command, held: message.HeldOf(stream.Context())}
	if err := f.held.More(3 * arrow.BatchBytesMax); err != nil {
		return err
	}
	f.batch = arrow.NewBatch(command.Columns, arrow.BatchBytesMax)
	defer f.batch.Drop()
	if err := f.eachWindow(f.rows); err != nil {
		return err
	}
	return f.flush()
}

// eachWindow reads all ids, a window of them at a time, and calls do with the results of each window. The argument
// first is the position of the first id of the window.
func (f *flightMany) eachWindow(do func(first int, read *flightRead) error) error {
	n := flightWindowFirst
	for first := 0; first < f.command.Len(); {
		n = min(n, f.command.Len()-first, getsMax)
		bytes, err := f.window(first, n, do)
		if err != nil {
			return err
		}
		first += n
		n = max(flightWindowMin, int(flightWindowBytes/max(bytes/int64(n), 1)))
	}
	return nil
}

// window reads n ids, from the position first on, and returns how many bytes their results have.
func (f *flightMany) window(first, n int, do func(first int, read *flightRead) error) (bytes int64, err error) {
	positions := make([]int, n)
	for i := range positions {
		positions[i] = first + i
	}
	read := &flightRead{ServerStream: f.stream, held: f.held, results: make([]*recordv1.BatchGetResult, n)}
	defer read.release()
	if err := f.read(read, positions, !f.command.Columns.NeedsData()); err != nil {
		return 0, err
	}
	if err := f.large(read, first); err != nil {
		return 0, err
	}
	return read.bytes, do(first, read)
}

// rows sends the results of a window as rows.
func (f *flightMany) rows(first int, read *flightRead) error {
	for i, result := range read.results {
		id := f.command.ID(first + i)
		row := arrow.Row{ID: id, Group: placement.GroupName(f.g.router.table.Load().view.Meta.Routing.GroupOf(id))}
		switch {
		case result == nil:
			return fail(codes.Unavailable, reason.ShardUnreachable, "a shard has not answered for record %d", id)
		case result.GetRecord() != nil:
			row = arrow.RowOf(result.GetRecord())
		}
		if result.GetStatus() != nil {
			row.Status = reason.Of(status.ErrorProto(result.GetStatus()))
		}
		if err := f.add(&row); err != nil {
			return err
		}
	}
	return nil
}

// read reads ids by a BatchGet, whose results read keeps.
func (f *flightMany) read(read *flightRead, positions []int, metadataOnly bool) error {
	in := &recordv1.BatchGetRequest{Gets: make([]*recordv1.GetRequest, len(positions))}
	for i, at := range positions {
		in.Gets[i] = &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: f.command.Group, Id: f.command.ID(at)},
			MetadataOnly: metadataOnly, View: f.command.View}
	}
	encoded, err := message.Codec{}.Marshal(in)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	read.request = &frame{bufs: encoded}
	return f.g.batchGet(read)
}

// large reads the metadata of the records that are too large for BatchGet, and adds them to their results.
func (f *flightMany) large(read *flightRead, first int) error {
	var positions []int
	for i, result := range read.results {
		if result.GetStatus() != nil && reason.Of(status.ErrorProto(result.GetStatus())) == reason.UseDownload {
			positions = append(positions, first+i)
		}
	}
	if len(positions) == 0 {
		return nil
	}
	again := &flightRead{ServerStream: f.stream, held: f.held, results: make([]*recordv1.BatchGetResult, len(positions))}
	defer again.release()
	if err := f.read(again, positions, true); err != nil {
		return err
	}
	for i, at := range positions {
		result := again.results[i]
		if result.GetRecord() != nil {
			result.Status = read.results[at-first].GetStatus()
		}
		read.results[at-first] = result
	}
	return nil
}

func (f *flightMany) add(row *arrow.Row) error {
	if f.batch.IsFull(arrow.Bound(row.Group, row.Attributes, len(row.Data))) {
		if err := f.flush(); err != nil {
			return err
		}
	}
	f.batch.Add(row)
	return nil
}

// flush sends the rows that remain, or at least the schema.
func (f *flightMany) flush() error {
	if !f.begun {
		f.begun = true
		if err := f.stream.SendMsg(arrow.Schema()); err != nil {
			return err
		}
	}
	if f.batch.Rows() == 0 {
		return nil
	}
	return f.stream.SendMsg(f.batch.Take(nil))
}

// flightRead is the stream of a BatchGet that the gateway calls itself. It keeps the results by their positions.
type flightRead struct {
	grpc.ServerStream
	request *frame
	results []*recordv1.BatchGetResult
	held    *message.Held
	bytes   int64
}

// RecvMsg implements grpc.ServerStream.
func (r *flightRead) RecvMsg(m any) error {
	m.(*frame).bufs = r.request.bufs
	r.request.bufs = nil
	return nil
}

// SendMsg implements grpc.ServerStream.
func (r *flightRead) SendMsg(m any) error {
	in := m.(*frame)
	defer in.free()
	n := int64(in.bufs.Len())
	if err := r.held.More(n); err != nil {
		return err
	}
	r.bytes += n
	var out recordv1.BatchGetResponse
	if err := in.DecodeInto(&out); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	for _, result := range out.GetResults() {
		if at := result.GetPosition(); int(at) < len(r.results) {
			r.results[at] = result
		}
	}
	return nil
}

// release releases the memory of the results.
func (r *flightRead) release() { _ = r.held.More(-r.bytes) } // a reduction is never refused
