package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

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
)

// readsMax limits how often a large record is read anew because another version replaced it before the first byte.
const readsMax = 5

// recordRead is a request for one record.
type recordRead struct {
	s       *webServer
	a       *answer
	r       *http.Request
	ctx     context.Context
	key     *recordv1.RecordKey
	version string // empty: the newest
}

// record answers a request for one record.
func (s *webServer) record(a *answer, r *http.Request) error {
	group, id, err := web.RecordPath(r.URL.Path)
	if err != nil {
		return err
	}
	given, err := web.Parameters(r.URL, "version", "view")
	if err != nil {
		return err
	}
	view, has := given["view"]
	if err := viewOf(view, has); err != nil {
		return err
	}
	read := &recordRead{s: s, a: a, r: r, ctx: callContext(r), version: given["version"]}
	if read.key, err = s.keyOf(read.ctx, group, id); err != nil {
		return err
	}
	none := r.Header.Values("If-None-Match")
	if r.Method == http.MethodHead || len(none) > 0 {
		found, err := read.metadata()
		switch {
		case err != nil:
			return err
		case web.Matches(none, found.GetVersion()):
			read.headers(found)
			a.begin(http.StatusNotModified)
			return nil
		case r.Method == http.MethodHead:
			read.headers(found)
			a.w.Header().Set("Content-Length", strconv.FormatInt(found.GetSizeBytes(), 10))
			a.begin(http.StatusOK)
			return nil
		}
	}
	if err = read.small(); reason.Of(err) == reason.UseDownload {
		return read.large()
	}
	return err
}

// keyOf returns the key in a path.
func (s *webServer) keyOf(ctx context.Context, group string, id int64) (*recordv1.RecordKey, error) {
	if group == web.AnyGroup {
		t, err := s.g.router.wait(ctx)
		if err != nil {
			return nil, err
		}
		if t.view.Meta.Routing.Mode == placement.Hash {
			return &recordv1.RecordKey{Id: id}, nil
		}
	}
	if err := placement.ValidateGroupName(group); err != nil {
		return nil, invalid("group", "%v", err)
	}
	return &recordv1.RecordKey{Group: group, Id: id}, nil
}

// metadata reads the record without its data.
func (read *recordRead) metadata() (*recordv1.Record, error) {
	bufs, err := read.s.calls.invoke(read.ctx, recordv1.RecordService_Get_FullMethodName,
		&recordv1.GetRequest{Key: read.key, Version: read.version, MetadataOnly: true})
	if err != nil {
		return nil, err
	}
	defer bufs.Free()
	r, _, err := responseOf(bufs)
	return r, err
}

// small answers with a record that one message holds.
func (read *recordRead) small() error {
	bufs, err := read.s.calls.invoke(read.ctx, recordv1.RecordService_Get_FullMethodName,
		&recordv1.GetRequest{Key: read.key, Version: read.version})
	if err != nil {
		return err
	}
	defer bufs.Free()
	n := message.RoundUp(int64(bufs.Len()))
	if err := read.s.g.answers.Take(n, 0); err != nil {
		return err
	}
	defer read.s.g.answers.Add(-n)
	r, data, err := responseOf(bufs)
	if err != nil {
		return err
	}
	part, ok := read.begin(r)
	if !ok {
		return nil
	}
	if err := data.skip(int(part.First)); err != nil {
		return err
	}
	data.left = int(part.Length)
	return read.a.writeAll(data)
}

// responseOf returns the record of a GetResponse, and its data, which lie in the buffers.
func responseOf(bufs mem.BufferSlice) (*recordv1.Record, scanner, error) {
	found, err := scan(bufs).find(1, protowire.BytesType)
	if err != nil {
		return nil, scanner{}, status.Error(codes.Internal, err.Error())
	}
	r := &recordv1.Record{}
	data, err := readRecord(found, r)
	if err == nil && r.GetDeleted() {
		err = fail(codes.NotFound, reason.RecordNotFound, "version %.40q is a delete", r.GetVersion())
	}
	return r, data, err
}

// dataField is the field of Record that holds the data.
const dataField = 15

// readRecord decodes a record without its data, which it returns where they lie.
func readRecord(s scanner, r *recordv1.Record) (data scanner, err error) {
	var rest []byte
	for s.left > 0 {
		before := s
		number, kind, value, err := s.next()
		if err != nil {
			return scanner{}, status.Error(codes.Internal, err.Error())
		}
		if number == dataField && kind == protowire.BytesType {
			data = value
			continue
		}
		rest = before.appendTo(rest, before.left-s.left)
	}
	if err := proto.Unmarshal(rest, r); err != nil {
		return scanner{}, status.Error(codes.Internal, errWire.Error())
	}
	return data, nil
}

// headers sets the headers of a record.
func (read *recordRead) headers(r *recordv1.Record) {
	h := read.a.w.Header()
	h.Set("ETag", web.ETag(r.GetVersion()))
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Sheaf-Group", r.GetKey().GetGroup())
	h.Set("Sheaf-Id", strconv.FormatInt(r.GetKey().GetId(), 10))
	h.Set("Sheaf-Commit-Time", string(web.AppendTime(nil, r.GetCommitTimeUnixNs())))
	h.Set("Sheaf-Timestamp", string(web.AppendTime(nil, r.GetTimestampUnixNs())))
	if r.DataCrc32C != nil {
		h.Set("Sheaf-Crc32c", fmt.Sprintf("%08x", r.GetDataCrc32C()))
	}
}

// begin writes the status and the headers of an answer with data. It returns the range that is to follow. If none
// follows, ok is false.
func (read *recordRead) begin(r *recordv1.Record) (part web.Range, ok bool) {
	part, asked, ok := web.RangeOf(read.r.Header, r.GetVersion(), r.GetSizeBytes())
	h := read.a.w.Header()
	read.headers(r)
	size := strconv.FormatInt(r.GetSizeBytes(), 10)
	switch {
	case !ok:
		p := web.ProblemOf(fail(codes.OutOfRange, reason.BadRange, "the record has %s bytes", size))
		h.Set("Content-Range", "bytes */"+size)
		read.a.begun = true
		_ = read.a.allow() // the write fails as well
		p.Write(read.a.w)
		return part, false
	case asked:
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%s", part.First, part.First+part.Length-1, size))
	}
	h.Set("Content-Length", strconv.FormatInt(part.Length, 10))
	code := http.StatusOK
	if asked {
		code = http.StatusPartialContent
	}
	read.a.begin(code)
	return part, true
}

// large answers with a record of any size.
func (read *recordRead) large() (err error) {
	asked := read.version
	for range readsMax {
		read.version = asked
		var r *recordv1.Record
		if r, err = read.metadata(); err != nil {
			return err
		}
		part, _, ok := web.RangeOf(read.r.Header, r.GetVersion(), r.GetSizeBytes())
		if !ok {
			read.begin(r)
			return nil
		}
		err = read.download(r, part)
		if read.a.begun || asked != "" || reason.Of(err) != reason.VersionNotFound {
			return err
		}
		read.a.over = false
	}
	return err
}

// download answers with a part of one version.
func (read *recordRead) download(r *recordv1.Record, part web.Range) error {
	const full = recordv1.RecordService_Download_FullMethodName
	sent := int64(0)
	s := &webStream{answer: read.a, request: &recordv1.DownloadRequest{Key: read.key, Version: r.GetVersion(),
		OffsetBytes: part.First, LengthBytes: &part.Length}}
	s.write = func(bufs mem.BufferSlice) error {
		chunk, data, err := chunkOf(scan(bufs))
		if err != nil {
			return err
		}
		if !chunk {
			read.begin(r)
			return nil
		}
		if sent += int64(data.left); sent > part.Length {
			return status.Error(codes.Internal, "a shard has sent more than was asked for")
		}
		return read.a.writeAll(data)
	}
	err := read.s.calls.stream(read.ctx, full, s, read.s.calls.streams[full])
	if err == nil && sent != part.Length {
		err = status.Errorf(codes.Internal, "a shard has sent %d of %d bytes", sent, part.Length)
	}
	return err
}

// chunkOf returns the data of a DownloadResponse. The result is is false if the message holds no chunk.
func chunkOf(s scanner) (is bool, data scanner, err error) {
	for s.left > 0 {
		number, kind, value, err := s.next()
		if err != nil {
			return false, scanner{}, status.Error(codes.Internal, err.Error())
		}
		if number == 2 && kind == protowire.BytesType {
			if data, err = value.find(1, protowire.BytesType); err != nil {
				return false, scanner{}, status.Error(codes.Internal, err.Error())
			}
			is = true
		}
	}
	return is, data, nil
}
