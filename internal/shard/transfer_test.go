package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/shard/serve"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// upload sends a header and chunks, and returns the response.
func (f *fixture) upload(header *recordv1.UploadHeader, chunks ...[]byte) (*recordv1.UploadResponse, error) {
	f.t.Helper()
	stream, err := f.records.Upload(f.ctx())
	must(f.t, err)
	// If the shard refuses the upload, Send returns io.EOF, and CloseAndRecv returns the reason.
	if header != nil {
		_ = stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: header}})
	}
	for _, c := range chunks {
		if stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: c}}) != nil {
			break
		}
	}
	return stream.CloseAndRecv()
}

// download reads a complete response, and checks each chunk's checksum.
func (f *fixture) download(in *recordv1.DownloadRequest) (*recordv1.Record, []byte, error) {
	f.t.Helper()
	stream, err := f.records.Download(f.ctx(), in)
	must(f.t, err)
	var head *recordv1.Record
	var got []byte
	for {
		out, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return head, got, nil
		}
		if err != nil {
			return head, got, err
		}
		if head == nil {
			if head = out.GetRecord(); head == nil || head.Data != nil {
				f.t.Errorf("first message is %v", out)
			}
			continue
		}
		c := out.GetChunk()
		if n := len(c.GetData()); n < 1 || n > format.BlobChunkBytes ||
			c.GetDataCrc32C() != crc32c.Of(c.GetData()) {
			f.t.Errorf("chunk of %d bytes, crc %08x", n, c.GetDataCrc32C())
		}
		got = append(got, c.GetData()...)
	}
}

// cut divides data into chunks of n bytes.
func cut(data []byte, n int) [][]byte { return slices.Collect(slices.Chunk(data, n)) }

func TestUploadDownload(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			for i, n := range []int{0, 1, format.DataBytesMax - 1, format.DataBytesMax, format.DataBytesMax + 1, 5<<20 + 77} {
				id, d := int64(i), data(int64(i), n)
				crc, size := crc32c.Of(d), int64(n)
				out, err := f.upload(&recordv1.UploadHeader{
					Key: key(id), DataCrc32C: &crc, SizeBytes: &size, Attributes: map[string][]byte{"a": []byte("b")},
				}, cut(d, 300_001)...)
				if err != nil {
					t.Fatalf("%d bytes: %v", n, err)
				}
				if out.GetSizeBytes() != size || out.GetPut().GetVersion() == "" || out.GetPut().GetDataCrc32C() != crc {
					t.Errorf("upload of %d bytes answers %v", n, out)
				}
				rec, got, err := f.download(&recordv1.DownloadRequest{Key: key(id)})
				if err != nil || !bytes.Equal(got, d) || rec.GetSizeBytes() != size || string(rec.GetAttributes()["a"]) != "b" ||
					rec.GetVersion() != out.GetPut().GetVersion() {
					t.Errorf("download of %d bytes: %d bytes, %v, %v", n, len(got), rec, err)
				}
				if n <= format.DataBytesMax {
					f.holds(id, d)
					continue
				}
				_, err = f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
				want(t, err, codes.FailedPrecondition, reason.UseDownload)
				meta, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id), MetadataOnly: true})
				if err != nil || meta.GetRecord().GetSizeBytes() != size {
					t.Errorf("metadata of %d bytes: %v, %v", n, meta, err)
				}
			}
		})
	})
}

func TestDownloadSlices(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		for id, n := range map[int64]int{1: 1000, 2: 3<<20 + 5} {
			d := data(id, n)
			if _, err := f.upload(&recordv1.UploadHeader{Key: key(id)}, cut(d, 1<<20)...); err != nil {
				t.Fatal(err)
			}
			for _, s := range [][2]int64{
				{0, 0}, {0, 1}, {1, 5}, {int64(n) - 1, 1}, {int64(n) - 1, 100}, {int64(n), 0}, {int64(n), 9},
				{int64(n / 2), math.MaxInt64}, {1<<20 - 3, 7}, {1 << 20, 1 << 20}, {999, 1 << 21},
			} {
				if s[0] > int64(n) {
					continue
				}
				end := int64(n)
				if s[1] < end-s[0] {
					end = s[0] + s[1]
				}
				rec, got, err := f.download(&recordv1.DownloadRequest{Key: key(id), OffsetBytes: s[0], LengthBytes: &s[1]})
				if err != nil || !bytes.Equal(got, d[s[0]:end]) || rec.GetSizeBytes() != int64(n) {
					t.Errorf("slice %v of %d: %d bytes, %v", s, n, len(got), err)
				}
			}
			_, _, err := f.download(&recordv1.DownloadRequest{Key: key(id), OffsetBytes: int64(n) + 1})
			want(t, err, codes.OutOfRange, reason.BadRange)
			_, _, err = f.download(&recordv1.DownloadRequest{Key: key(id), OffsetBytes: math.MaxInt64})
			want(t, err, codes.OutOfRange, reason.BadRange)
		}
		minus := int64(-1)
		for _, in := range []*recordv1.DownloadRequest{
			{}, {Key: key(1), OffsetBytes: -1}, {Key: key(1), LengthBytes: &minus}, {Key: key(1), Version: "?"},
			{Key: key(1), OffsetBytes: math.MinInt64},
		} {
			_, _, err := f.download(in)
			want(t, err, codes.InvalidArgument, "")
		}
		_, _, err := f.download(&recordv1.DownloadRequest{Key: key(404)})
		want(t, err, codes.NotFound, reason.RecordNotFound)
	})
}

func TestDownloadPinsVersion(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		old, d := data(1, 2<<20), data(2, 3<<20)
		first, err := f.upload(&recordv1.UploadHeader{Key: key(1)}, cut(old, 1<<20)...)
		must(t, err)
		if _, err := f.upload(&recordv1.UploadHeader{Key: key(1)}, cut(d, 1<<20)...); err != nil {
			t.Fatal(err)
		}
		if _, got, err := f.download(&recordv1.DownloadRequest{Key: key(1), Version: first.GetPut().
			GetVersion()}); err != nil || !bytes.Equal(got, old) {
			t.Errorf("pinned: %d bytes, %v", len(got), err)
		}
		if _, got, err := f.download(&recordv1.DownloadRequest{Key: key(1)}); err != nil || !bytes.Equal(got, d) {
			t.Errorf("newest: %d bytes, %v", len(got), err)
		}
	})
}

func TestUploadBadInputStoresNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		small, big := [][]byte{[]byte("abc")}, cut(data(1, 3<<20), 1<<20)
		sum := func(chunks [][]byte) uint32 { return crc32c.Of(bytes.Join(chunks, nil)) }
		p := func(n int64) *int64 { return &n }
		for name, c := range map[string]struct {
			header *recordv1.UploadHeader
			chunks [][]byte
		}{
			"no header":            {nil, small},
			"nothing at all":       {nil, nil},
			"no key":               {&recordv1.UploadHeader{}, small},
			"negative size":        {&recordv1.UploadHeader{Key: key(1), SizeBytes: p(-1)}, small},
			"size too small":       {&recordv1.UploadHeader{Key: key(1), SizeBytes: p(2)}, small},
			"size too large":       {&recordv1.UploadHeader{Key: key(1), SizeBytes: p(4)}, small},
			"blob size too small":  {&recordv1.UploadHeader{Key: key(1), SizeBytes: p(3<<20 - 1)}, big},
			"blob size too large":  {&recordv1.UploadHeader{Key: key(1), SizeBytes: p(3<<20 + 1)}, big},
			"chunk above 1 MiB":    {&recordv1.UploadHeader{Key: key(1)}, [][]byte{make([]byte, 1<<20+1)}},
			"request id too short": {&recordv1.UploadHeader{Key: key(1), RequestId: []byte{1}}, small},
			"wrong CRC":            {&recordv1.UploadHeader{Key: key(1), DataCrc32C: proto32(sum(small) + 1)}, small},
			"wrong CRC of a blob":  {&recordv1.UploadHeader{Key: key(1), DataCrc32C: proto32(sum(big) + 1)}, big},
			"bad condition":        {&recordv1.UploadHeader{Key: key(1), Condition: ifVersion("!")}, small},
			"attributes too large": {&recordv1.UploadHeader{Key: key(1), Attributes: attributesOf(64<<10 + 1)}, small},
		} {
			t.Run(name, func(t *bubble) {
				_, err := f.upload(c.header, c.chunks...)
				want(t, err, codes.InvalidArgument, "")
				f.absent(1)
			})
		}
		t.Run("a second header", func(t *bubble) {
			stream, err := f.records.Upload(f.ctx())
			must(t, err)
			for range 2 {
				_ = stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{
					Key: key(1)}}})
			}
			_, err = stream.CloseAndRecv()
			want(t, err, codes.InvalidArgument, "")
			f.absent(1)
		})
		t.Run("larger than the volume", func(t *bubble) {
			_, err := f.upload(&recordv1.UploadHeader{Key: key(1), SizeBytes: p(math.MaxInt64)}, small...)
			want(t, err, codes.ResourceExhausted, reason.DiskFull)
			f.absent(1)
		})
		t.Run("refused by its condition", func(t *bubble) {
			f.put(2, []byte("there"))
			_, err := f.upload(&recordv1.UploadHeader{Key: key(2), Condition: ifAbsent()}, big...)
			want(t, err, codes.AlreadyExists, reason.RecordExists)
			f.holds(2, []byte("there"))
		})
		if n := f.blobs(); n != 0 {
			t.Errorf("%d blob files are left of refused uploads", n)
		}
		if used := f.shard.calls.BytesInFlight(); used != 0 {
			t.Errorf("%d bytes in flight when nothing is", used)
		}
	})
}

// blobs counts the blob files on the volume, including those that are being written.
func (f *fixture) blobs() int {
	f.t.Helper()
	n := 0
	for name := range filesBelow(f.t, f.cfg.FS, filepath.Join(f.cfg.Dir, "groups")) {
		if strings.Contains(filepath.Base(name), "blob") {
			n++
		}
	}
	return n
}

func proto32(v uint32) *uint32 { return &v }

func TestUploadBrokenStreamStoresNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		f.put(1, []byte("before"))
		for _, n := range []int{0, 1000, 5 << 20} {
			ctx, cancel := context.WithCancel(f.ctx())
			stream, err := f.records.Upload(ctx)
			must(t, err)
			must(t, stream.Send(
				&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(
					1)}}}))
			for _, c := range cut(data(1, n), 1<<20) {
				must(t, stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: c}}))
			}
			f.eventually("the call is under way", func() bool { return f.shard.calls.Calls() == 1 })
			cancel() // aborts the call without a half-close
			f.eventually("the call ends", func() bool { return f.shard.calls.Calls() == 0 })
			f.holds(1, []byte("before"))
			if used := f.shard.calls.BytesInFlight(); used != 0 {
				t.Errorf("%d bytes in flight when nothing is", used)
			}
		}
		// No file of these uploads remains on the disk.
		if n := f.blobs(); n != 0 {
			t.Errorf("%d blob files are left of cut uploads", n)
		}
		sv := f.served(hash4.GroupOf(1))
		report, err := sv.Log().Verify(f.ctx(), 0)
		if err != nil || len(report.Damages) > 0 {
			t.Errorf("verify: %+v, %v", report, err)
		}
	})
}

// served returns a group of the shard.
func (f *fixture) served(group int) *replicas.Served {
	f.t.Helper()
	sv, err := (forCalls{f.shard}).Group(f.ctx(), fmt.Sprint(group), 0)
	must(f.t, err)
	return sv.(*replicas.Served)
}

func TestUploadRepeatedByRequestID(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		d := data(1, 2<<20)
		header := &recordv1.UploadHeader{Key: key(1), RequestId: bytes.Repeat([]byte{1}, 16)}
		first, err := f.upload(header, cut(d, 1<<20)...)
		must(t, err)
		again, err := f.upload(header, cut(d, 1<<20)...)
		if err != nil || !again.GetPut().GetRepeated() || again.GetPut().GetVersion() != first.GetPut().GetVersion() ||
			again.GetPut().GetDataCrc32C() != first.GetPut().GetDataCrc32C() {
			t.Errorf("repeated upload answers %v, %v; the first %v", again, err, first)
		}
		if n := f.blobs(); n != 1 {
			t.Errorf("%d blob files for one record", n)
		}
		if _, got, err := f.download(&recordv1.DownloadRequest{Key: key(1)}); err != nil || !bytes.Equal(got, d) {
			t.Errorf("download: %d bytes, %v", len(got), err)
		}
	})
}

// If all puts of a batch have the same request id, the first put of each group is stored. Each of the other puts gets
// an error, so that no put is lost silently.
func TestBatchPutWithOneRequestIDForAllLosesNothingInSilence(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		in := &recordv1.BatchPutRequest{}
		for id := range int64(20) {
			in.Puts = append(in.Puts, &recordv1.PutRequest{Key: key(id), Data: fmt.Append(nil, id),
				RequestId: bytes.Repeat([]byte{7}, 16)})
		}
		stream, err := f.records.BatchPut(f.ctx())
		must(t, err)
		must(t, errors.Join(stream.Send(in), stream.CloseSend()))
		out, err := stream.Recv()
		must(t, err)
		stored := 0
		for id, r := range out.GetResults() {
			if r.GetStatus().GetCode() == 0 {
				stored++
				f.holds(int64(id), fmt.Append(nil, id))
				continue
			}
			want(t, status.FromProto(r.GetStatus()).Err(), codes.InvalidArgument, "REQUEST_ID_REUSED")
			f.absent(int64(id))
		}
		if stored < 1 || stored > 4 {
			t.Errorf("%d puts of 20 in 4 groups are stored, want one for each group", stored)
		}
	})
}

func TestBatchPutAnswersInOrder(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			stream, err := f.records.BatchPut(f.ctx())
			must(t, err)
			const messages, puts = 20, 50
			bad := func(m, p int) bool { return (m+p)%7 == 0 }
			go func() {
				for m := range messages {
					in := &recordv1.BatchPutRequest{}
					for p := range puts {
						put := &recordv1.PutRequest{Key: key(int64(m*puts + p)), Data: data(int64(m*puts+p), 100+p)}
						if bad(m, p) {
							put.RequestId = []byte("short")
						}
						in.Puts = append(in.Puts, put)
					}
					_ = stream.Send(in)
				}
				_ = stream.CloseSend()
			}()
			for m := range messages {
				out, err := stream.Recv()
				if err != nil {
					t.Fatalf("message %d: %v", m, err)
				}
				if len(out.GetResults()) != puts {
					t.Fatalf("message %d has %d results", m, len(out.GetResults()))
				}
				for p, r := range out.GetResults() {
					id := int64(m*puts + p)
					if bad(m, p) {
						if codes.Code(r.GetStatus().GetCode()) != codes.InvalidArgument || r.Put != nil ||
							len(r.GetStatus().GetDetails()) == 0 {
							t.Errorf("bad put answers %v", r)
						}
						f.absent(id)
						continue
					}
					if r.GetStatus().GetCode() != 0 || r.GetPut().GetDataCrc32C() != crc32c.Of(data(id, 100+p)) {
						t.Errorf("put %d answers %v", id, r)
					}
				}
			}
			if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("the stream ends with %v", err)
			}
			for id := range int64(messages * puts) {
				if !bad(int(id)/puts, int(id)%puts) {
					f.holds(id, data(id, 100+int(id)%puts))
				}
			}
		})
	})
}

func TestBatchPutSeesItsOwnConditions(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		stream, err := f.records.BatchPut(f.ctx())
		must(t, err)
		put := &recordv1.PutRequest{Key: key(1), Condition: ifAbsent(), Data: []byte("x")}
		must(t, stream.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{put, put}}))
		out, err := stream.Recv()
		must(t, err)
		if a, b := out.GetResults()[0], out.GetResults()[1]; a.GetStatus().GetCode() != 0 ||
			codes.Code(b.GetStatus().GetCode()) != codes.AlreadyExists {
			t.Errorf("if_absent twice: %v, %v", a, b)
		}
	})
}

func TestBatchPutLimits(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		many := make([]*recordv1.PutRequest, serve.BatchPutsMax+1)
		for i := range many {
			many[i] = &recordv1.PutRequest{Key: key(int64(i))}
		}
		five := make([]*recordv1.PutRequest, 5)
		for i := range five {
			five[i] = &recordv1.PutRequest{Key: key(int64(i)), Data: make([]byte, 1<<20)}
		}
		for name, puts := range map[string][]*recordv1.PutRequest{"none": nil, "too many": many, "5 MiB": five} {
			stream, err := f.records.BatchPut(f.ctx())
			must(t, err)
			// The second message ends the stream with an error, but the put in the first message still gets its response.
			ok := []*recordv1.PutRequest{{Key: key(99)}}
			must(t, errors.Join(stream.Send(&recordv1.BatchPutRequest{Puts: ok}),
				stream.Send(&recordv1.BatchPutRequest{Puts: puts})))
			if out, err := stream.Recv(); err != nil || out.GetResults()[0].GetStatus().GetCode() != 0 {
				t.Errorf("%s: the good message answers %v, %v", name, out, err)
			}
			_, err = stream.Recv()
			want(t, err, codes.InvalidArgument, "")
		}
		f.absent(0)
		f.eventually("all bytes are given back", func() bool { return f.shard.calls.BytesInFlight() == 0 })
	})
}

func TestBatchGet(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			const n = 300
			f.putEach(n, 10_000)
			in := &recordv1.BatchGetRequest{}
			for id := range int64(n) {
				in.Gets = append(in.Gets, &recordv1.GetRequest{Key: key(id)})
			}
			in.Gets = append(in.Gets, &recordv1.GetRequest{Key: key(-1)}, &recordv1.GetRequest{},
				&recordv1.GetRequest{Key: key(5), MetadataOnly: true}, &recordv1.GetRequest{Key: key(5), Version: "bad!"})
			stream, err := f.records.BatchGet(f.ctx(), in)
			must(t, err)
			seen := map[uint32]*recordv1.BatchGetResult{}
			for {
				out, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				must(t, err)
				for _, r := range out.GetResults() {
					if seen[r.GetPosition()] != nil {
						t.Errorf("position %d twice", r.GetPosition())
					}
					seen[r.GetPosition()] = r
				}
			}
			if len(seen) != len(in.GetGets()) {
				t.Fatalf("%d results for %d reads", len(seen), len(in.GetGets()))
			}
			for id := range int64(n) {
				if r := seen[uint32(id)].GetRecord(); r.GetKey().GetId() != id || !bytes.Equal(r.GetData(), data(id, 10_000)) {
					t.Errorf("position %d holds record %d of %d bytes", id, r.GetKey().GetId(), len(r.GetData()))
				}
			}
			for position, code := range map[uint32]codes.Code{n: codes.NotFound, n + 1: codes.InvalidArgument,
				n + 3: codes.InvalidArgument} {
				if got := codes.Code(seen[position].GetStatus().GetCode()); got != code || seen[position].Record != nil {
					t.Errorf("position %d: %v, want %v", position, seen[position], code)
				}
			}
			if r := seen[n+2].GetRecord(); r.GetSizeBytes() != 10_000 || r.Data != nil {
				t.Errorf("metadata only: %v", r)
			}
			for _, bad := range []int{0, serve.BatchGetsMax + 1} {
				stream, err := f.records.BatchGet(f.ctx(), &recordv1.BatchGetRequest{Gets: make([]*recordv1.GetRequest, bad)})
				if err == nil {
					_, err = stream.Recv()
				}
				want(t, err, codes.InvalidArgument, "")
			}
			if used := f.shard.calls.BytesInFlight(); used != 0 {
				t.Errorf("%d bytes in flight when nothing is", used)
			}
		})
	})
}
