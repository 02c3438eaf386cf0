package gateway

import (
	"context"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/web"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
)

const (
	// tarBytes is the number of bytes at which members are sent. One record may follow before they are.
	tarBytes = 1 << 20
	// tarBytesMax bounds the memory of members that are not sent yet.
	tarBytesMax = 3 << 20
)

// tarStream writes records as members of an archive to the stream of a call.
type tarStream struct {
	grpc.ServerStream
	g    *Gateway
	held *message.Held
	buf  []byte // members that are not sent yet
}

func (g *Gateway) newTarStream(stream grpc.ServerStream) (*tarStream, error) {
	t := &tarStream{ServerStream: stream, g: g, held: message.HeldOf(stream.Context())}
	return t, t.held.More(tarBytesMax)
}

// flush sends the members. The stream has written them when SendMsg returns.
func (t *tarStream) flush() error {
	if len(t.buf) == 0 {
		return nil
	}
	err := t.SendMsg(&frame{bufs: mem.BufferSlice{mem.SliceBuffer(t.buf)}})
	t.buf = t.buf[:0]
	return err
}

// add adds a record whose data lie in a message.
func (t *tarStream) add(r *recordv1.Record, data scanner) error {
	if size := int64(data.left); size != r.GetSizeBytes() {
		return status.Errorf(codes.Internal, "a shard has sent %d of %d bytes of record %d", size, r.GetSizeBytes(),
			r.GetKey().GetId())
	}
	t.buf = web.AppendRecord(t.buf, r)
	t.buf = data.appendTo(t.buf, data.left)
	t.buf = web.AppendPadding(t.buf, r.GetSizeBytes())
	if len(t.buf) < tarBytes {
		return nil
	}
	return t.flush()
}

// download adds a record of any size. It reports whether the record has begun when an error occurred.
func (t *tarStream) download(key *recordv1.RecordKey, version string) (begun bool, err error) {
	ctx := t.Context()
	if err := t.flush(); err != nil {
		return true, err
	}
	k := recordKeyOf(key)
	if err := t.g.may(ctx, access.Get, k); err != nil {
		return false, err
	}
	encoded, err := proto.Marshal(&recordv1.DownloadRequest{Key: key, Version: version})
	if err != nil {
		return false, status.Error(codes.Internal, err.Error())
	}
	chunks := &tarChunks{ServerStream: t.ServerStream, t: t}
	in := &frame{keep: true, bufs: mem.BufferSlice{mem.SliceBuffer(encoded)}}
	err = t.g.pump(ctx, chunks, func(call *repeated, ctx context.Context, do attempt) error {
		return call.route(ctx, k, false, do)
	}, recordv1.RecordService_Download_FullMethodName, in, nil)
	if err == nil && (!chunks.begun || chunks.left != 0) {
		err = status.Errorf(codes.Internal, "a shard has left out %d bytes of record %d", chunks.left, key.GetId())
	}
	if err != nil {
		return chunks.begun, err
	}
	t.buf = web.AppendPadding(t.buf, chunks.size)
	return true, nil
}

func recordKeyOf(k *recordv1.RecordKey) *key {
	return &key{present: true, id: k.GetId(), group: []byte(k.GetGroup())}
}

// tarChunks is the stream of a Download whose data become a member.
type tarChunks struct {
	grpc.ServerStream
	t          *tarStream
	begun      bool
	size, left int64
}

// SendMsg implements grpc.ServerStream.
func (c *tarChunks) SendMsg(m any) error {
	in := m.(*frame)
	defer in.free()
	is, data, err := chunkOf(scan(in.bufs))
	if err != nil {
		return err
	}
	if !is {
		found, err := scan(in.bufs).find(1, protowire.BytesType)
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		r := &recordv1.Record{}
		if _, err := readRecord(found, r); err != nil {
			return err
		}
		c.begun, c.size, c.left = true, r.GetSizeBytes(), r.GetSizeBytes()
		c.t.buf = web.AppendRecord(c.t.buf, r)
		return c.t.flush()
	}
	if c.left -= int64(data.left); c.left < 0 {
		return status.Error(codes.Internal, "a shard has sent more than the size of the record")
	}
	out := &frame{}
	for data.left > 0 {
		data.fill()
		n := min(len(data.cur), data.left)
		out.bufs = append(out.bufs, mem.SliceBuffer(data.cur[:n]))
		data.cur, data.left = data.cur[n:], data.left-n
	}
	return c.ServerStream.SendMsg(out)
}

// scan answers a request for all records.
func (s *webServer) scan(a *answer, r *http.Request) error {
	given, err := web.Parameters(r.URL, "group", "view", "split")
	if err != nil {
		return err
	}
	view, has := given["view"]
	if err := viewOf(view, has); err != nil {
		return err
	}
	split, err := web.ParseSplit(given["split"])
	if err != nil {
		return err
	}
	if group, has := given["group"]; has {
		if err := placement.ValidateGroupName(group); err != nil {
			return invalid("group", "%v", err)
		}
	}
	a.isTar = true
	a.w.Header().Set("Content-Type", "application/x-tar")
	const full = recordv1.RecordService_Scan_FullMethodName
	return s.calls.stream(callContext(r), full, &webStream{answer: a},
		s.g.counted(full, func(stream grpc.ServerStream) error { return s.g.scanTar(stream, given["group"], split) }))
}

// scanTar streams the records of a group, or of all groups if its name is empty, that are in a part.
func (g *Gateway) scanTar(stream grpc.ServerStream, group string, split web.Split) error {
	ctx := stream.Context()
	if err := access.May(ctx, access.Scan, group); err != nil {
		return err
	}
	groups := []string{group}
	if group == "" {
		var err error
		if groups, err = g.groupsOf(ctx, split); err != nil {
			return err
		}
	}
	out, err := g.newTarStream(stream)
	if err != nil {
		return err
	}
	var damage error
	for _, group := range groups {
		switch err := g.scanTarGroup(out, group, split); {
		case status.Code(err) == codes.DataLoss:
			damage = err
		case err != nil:
			return err
		}
	}
	if damage != nil {
		return damage
	}
	out.buf = web.AppendEnd(out.buf)
	return out.flush()
}

// groupsOf returns the groups that can have records in a part.
func (g *Gateway) groupsOf(ctx context.Context, split web.Split) (groups []string, err error) {
	t, err := g.router.wait(ctx)
	if err != nil {
		return nil, err
	}
	if err := t.listed(); err != nil {
		return nil, err
	}
	if t.hash != nil {
		routing := t.view.Meta.Routing
		for n := range routing.Groups {
			if first, last := routing.KeyRange(n); split.Overlaps(first, last) {
				groups = append(groups, placement.GroupName(n))
			}
		}
		return groups, nil
	}
	for _, r := range t.groups() {
		if r.holds { // a group that no shard has created yet is empty
			groups = append(groups, r.group)
		}
	}
	return groups, nil
}

// scanTarGroup streams the records of one group.
func (g *Gateway) scanTarGroup(out *tarStream, group string, split web.Split) error {
	s := &tarScan{tarStream: out, split: split}
	request := &recordv1.ScanRequest{Group: group}
	for {
		err := g.pumpGroup(out.Context(), s, group, recordv1.RecordService_Scan_FullMethodName, request, nil)
		// While the data of a large record were sent, nobody took the messages of the scan.
		if !s.paused || len(s.cursor) == 0 || reason.Of(err) != reason.SlowReader {
			return err
		}
		s.paused = false
		request = &recordv1.ScanRequest{Cursor: s.cursor}
	}
}

// tarScan is the stream of a Scan whose records become members.
type tarScan struct {
	*tarStream
	split  web.Split
	cursor []byte // after the last message
	paused bool   // a large record was sent since the scan began
}

// SendMsg implements grpc.ServerStream.
func (s *tarScan) SendMsg(m any) error {
	in := m.(*frame)
	defer in.free()
	if err := eachItem(in.bufs, func(item scanner, _, _ int) error { return s.record(item) }); err != nil {
		return err
	}
	encoded, err := bytesOf(in, cursorField)
	if err != nil {
		return err
	}
	if len(encoded) > 0 {
		s.cursor = append(s.cursor[:0], encoded...)
	}
	return s.flush()
}

func (s *tarScan) record(item scanner) error {
	r := &recordv1.Record{}
	data, err := readRecord(item, r)
	switch {
	case err != nil:
		return err
	case !s.split.Has(r.GetKey().GetId()):
		return nil
	case int64(data.left) == r.GetSizeBytes():
		return s.add(r, data)
	}
	s.paused = true
	_, err = s.download(r.GetKey(), r.GetVersion())
	return err
}
