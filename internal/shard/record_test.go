package shard

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// residencies runs a test once for each kind of residency.
func residencies(t *bubble, run func(t *bubble, f *fixture)) {
	for _, r := range []group.Residency{group.Index, group.Resident} {
		t.Run(r.String(), func(t *bubble) {
			run(t, start(t, newRegistry(hash4, "s1"), func(c *Config) { c.Residency = r }).ready())
		})
	}
}

func TestPutGetDelete(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			before := time.Now().UnixNano()
			for _, id := range []int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64} {
				for _, n := range []int{0, 1, 1000, 10240, format.DataBytesMax} {
					d := data(id, n)
					out := f.put(id, d)
					if out.GetVersion() == "" || out.GetRepeated() || out.GetDataCrc32C() != crc32c.Of(d) {
						t.Errorf("put %d of %d bytes answers %v", id, n, out)
					}
					f.holds(id, d)
					rec := f.get(id)
					if rec.GetKey().GetId() != id || rec.GetKey().GetGroup() != fmt.Sprint(hash4.GroupOf(id)) ||
						rec.GetVersion() != out.GetVersion() || rec.GetCommitTimeUnixNs() != out.GetCommitTimeUnixNs() ||
						rec.GetTimestampUnixNs() != out.GetCommitTimeUnixNs() || rec.GetDeleted() || len(rec.GetAttributes()) != 0 {
						t.Errorf("get %d gives %v; put answered %v", id, head(rec), out)
					}
					if rec.GetCommitTimeUnixNs() < before || rec.GetCommitTimeUnixNs() > time.Now().UnixNano() {
						t.Errorf("commit time %d is not now", rec.GetCommitTimeUnixNs())
					}
				}
				if out := f.delete(id); !out.GetExisted() || out.GetVersion() == "" || out.GetCommitTimeUnixNs() == 0 {
					t.Errorf("delete %d answers %v", id, out)
				}
				f.absent(id)
				if out := f.delete(id); out.GetExisted() || out.GetVersion() != "" || out.GetCommitTimeUnixNs() != 0 {
					t.Errorf("second delete %d answers %v", id, out)
				}
			}
		})
	})
}

// head returns a copy of a record without its data.
func head(r *recordv1.Record) *recordv1.Record {
	r = proto.Clone(r).(*recordv1.Record)
	r.Data = nil
	return r
}

func TestPutKeepsTimestampAndAttributes(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			for i, ts := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64} {
				attributes := map[string][]byte{
					"path": []byte("a/b"), "empty": {}, "ключ": {0, 255}, strings.Repeat("k", 255): bytes.Repeat([]byte{7}, 60<<10),
				}
				if _, err := f.records.Put(f.ctx(), &recordv1.PutRequest{
					Key: key(int64(i)), TimestampUnixNs: &ts, Attributes: attributes, Data: []byte("x"),
				}); err != nil {
					t.Fatal(err)
				}
				rec := f.get(int64(i))
				if rec.GetTimestampUnixNs() != ts {
					t.Errorf("timestamp %d came back as %d", ts, rec.GetTimestampUnixNs())
				}
				if len(rec.GetAttributes()) != len(attributes) {
					t.Errorf("%d attributes came back, want %d", len(rec.GetAttributes()), len(attributes))
				}
				for k, v := range attributes {
					got, ok := rec.GetAttributes()[k]
					if !ok || !bytes.Equal(got, v) {
						t.Errorf("attribute %.10q came back as %d bytes (%v), want %d", k, len(got), ok, len(v))
					}
				}
			}
		})
	})
}

// attributesOf returns attributes of exactly n bytes: one key of 1 byte, 6 bytes of overhead, and the value.
func attributesOf(n int) map[string][]byte { return map[string][]byte{"k": make([]byte, n-7)} }

func TestPutBadFields(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		f.put(1, []byte("first"))
		crc := crc32c.Of([]byte("x")) ^ 1
		for name, c := range map[string]struct {
			change func(in *recordv1.PutRequest)
			fields []string // the fields that are refused; nil if the put is accepted
		}{
			"nothing wrong":  {func(*recordv1.PutRequest) {}, nil},
			"no key":         {func(in *recordv1.PutRequest) { in.Key = nil }, []string{"key"}},
			"the id's group": {func(in *recordv1.PutRequest) { in.Key.Group = fmt.Sprint(hash4.GroupOf(1)) }, nil},
			"another group": {func(in *recordv1.PutRequest) {
				in.Key.Group = fmt.Sprint(hash4.GroupOf(1) ^ 1)
			}, []string{"key.group"}},
			"group as octal": {func(in *recordv1.PutRequest) {
				in.Key.Group = fmt.Sprintf("0%d", hash4.GroupOf(1))
			}, []string{"key.group"}},
			"group no number": {func(in *recordv1.PutRequest) { in.Key.Group = "quotes" }, []string{"key.group"}},
			"huge group": {func(in *recordv1.PutRequest) {
				in.Key.Group = strings.Repeat("9", 1<<20)
			}, []string{"key.group"}},
			"request id of 15 bytes": {func(in *recordv1.PutRequest) {
				in.RequestId = make([]byte, 15)
			}, []string{"request_id"}},
			"request id of 17 bytes": {func(in *recordv1.PutRequest) {
				in.RequestId = make([]byte, 17)
			}, []string{"request_id"}},
			"request id of zeros": {func(in *recordv1.PutRequest) {
				in.RequestId = make([]byte, 16)
			}, []string{"request_id"}},
			"wrong CRC":            {func(in *recordv1.PutRequest) { in.DataCrc32C = &crc }, []string{"data_crc32c"}},
			"attributes of 64 KiB": {func(in *recordv1.PutRequest) { in.Attributes = attributesOf(64 << 10) }, nil},
			"attributes of one more": {func(in *recordv1.PutRequest) {
				in.Attributes = attributesOf(64<<10 + 1)
			}, []string{"attributes"}},
			"attribute without a key": {func(in *recordv1.PutRequest) {
				in.Attributes = map[string][]byte{"": {1}}
			}, []string{"attributes"}},
			"attribute with a long key": {func(in *recordv1.PutRequest) {
				in.Attributes = map[string][]byte{strings.Repeat("k", 256): {1}}
			}, []string{"attributes"}},
			"if_version empty": {func(in *recordv1.PutRequest) {
				in.Condition = ifVersion("")
			}, []string{"condition.if_version"}},
			"if_version garbage": {func(in *recordv1.PutRequest) {
				in.Condition = ifVersion("NOT ONE")
			}, []string{"condition.if_version"}},
			"if_absent false": {func(in *recordv1.PutRequest) {
				in.Condition = &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfAbsent{}}
			}, []string{"condition.if_absent"}},
			"empty condition": {func(in *recordv1.PutRequest) { in.Condition = &recordv1.WriteCondition{} }, nil},
			"an old epoch":    {func(in *recordv1.PutRequest) { in.RoutingEpoch = 1 }, nil},
			"a future epoch":  {func(in *recordv1.PutRequest) { in.RoutingEpoch = math.MaxUint64 }, nil},
			"three fields": {func(in *recordv1.PutRequest) {
				in.RequestId, in.DataCrc32C, in.Condition = []byte{1}, &crc, ifVersion("?")
			}, []string{"request_id", "condition.if_version", "data_crc32c"}},
		} {
			t.Run(name, func(t *bubble) {
				before := f.get(1)
				in := &recordv1.PutRequest{Key: key(1), Data: []byte("x")}
				c.change(in)
				_, err := f.records.Put(f.ctx(), in)
				if c.fields == nil {
					if err != nil {
						t.Errorf("refused: %v", err)
					}
					return
				}
				want(t, err, codes.InvalidArgument, "")
				if got := violationsOf(err); !slices.Equal(got, c.fields) {
					t.Errorf("fields named: %v, want %v", got, c.fields)
				}
				if after := f.get(1); after.GetVersion() != before.GetVersion() {
					t.Errorf("a refused put was stored")
				}
			})
		}
	})
}

func TestPutAbove1MiBSaysUseUpload(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		for _, n := range []int{format.DataBytesMax + 1, 7 << 20} {
			_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(1), Data: make([]byte, n)})
			want(t, err, codes.FailedPrecondition, reason.UseUpload)
		}
		// gRPC itself refuses a message far above the limit, before the shard sees anything of it.
		_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(1), Data: make([]byte, 25<<20)})
		want(t, err, codes.ResourceExhausted, "")
		f.absent(1)
	})
}

func ifVersion(v string) *recordv1.WriteCondition {
	return &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfVersion{IfVersion: v}}
}

func ifAbsent() *recordv1.WriteCondition {
	return &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfAbsent{IfAbsent: true}}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		put := func(c *recordv1.WriteCondition) (*recordv1.PutResponse, error) {
			return f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(5), Condition: c, Data: []byte("x")})
		}
		_, err := put(ifVersion(cursor.Version(3)))
		want(t, err, codes.Aborted, reason.VersionMismatch)
		if v := metadataOf(err, "version"); v != "" {
			t.Errorf("mismatch without a record names version %q", v)
		}
		first, err := put(ifAbsent())
		must(t, err)
		_, err = put(ifAbsent())
		want(t, err, codes.AlreadyExists, reason.RecordExists)
		if v := metadataOf(err, "version"); v != first.GetVersion() {
			t.Errorf("RECORD_EXISTS names version %q, want %q", v, first.GetVersion())
		}
		second, err := put(ifVersion(first.GetVersion()))
		must(t, err)
		_, err = put(ifVersion(first.GetVersion()))
		want(t, err, codes.Aborted, reason.VersionMismatch)
		if v := metadataOf(err, "version"); v != second.GetVersion() {
			t.Errorf("VERSION_MISMATCH names version %q, want %q", v, second.GetVersion())
		}
		// Delete also accepts if_version. After the delete, a put with if_absent succeeds.
		del := &recordv1.DeleteRequest{Key: key(5), Condition: ifVersion(first.GetVersion())}
		_, err = f.records.Delete(f.ctx(), del)
		want(t, err, codes.Aborted, reason.VersionMismatch)
		del.Condition = ifAbsent()
		_, err = f.records.Delete(f.ctx(), del)
		want(t, err, codes.InvalidArgument, "")
		del.Condition = ifVersion(second.GetVersion())
		if _, err := f.records.Delete(f.ctx(), del); err != nil {
			t.Fatal(err)
		}
		if _, err := put(ifAbsent()); err != nil {
			t.Errorf("if_absent after a delete: %v", err)
		}
	})
}

func TestRequestIDMakesRetriesExact(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		in := &recordv1.PutRequest{
			Key: key(9), Data: []byte("once"), RequestId: bytes.Repeat([]byte{9}, 16), Condition: ifAbsent(),
		}
		first, err := f.records.Put(f.ctx(), in)
		must(t, err)
		check := func() {
			t.Helper()
			again, err := f.records.Put(f.ctx(), in)
			if err != nil {
				t.Fatalf("repeated: %v", err)
			}
			if !again.GetRepeated() || again.GetVersion() != first.GetVersion() ||
				again.GetCommitTimeUnixNs() != first.GetCommitTimeUnixNs() || again.GetDataCrc32C() != first.GetDataCrc32C() {
				t.Errorf("repeated put answers %v, the first %v", again, first)
			}
		}
		check()
		f.put(9, []byte("newer"))
		check()
		f.holds(9, []byte("newer"))
		f.shard.Kill()
		f.again(nil)
		check()
		f.holds(9, []byte("newer"))

		del := &recordv1.DeleteRequest{Key: key(9), RequestId: bytes.Repeat([]byte{8}, 16)}
		gone, err := f.records.Delete(f.ctx(), del)
		must(t, err)
		f.put(9, []byte("back"))
		again, err := f.records.Delete(f.ctx(), del)
		if err != nil || !again.GetRepeated() || again.GetVersion() != gone.GetVersion() || !again.GetExisted() {
			t.Errorf("repeated delete answers %v, %v; the first %v", again, err, gone)
		}
		f.holds(9, []byte("back"))
	})
}

// A request id identifies one write. Another write under the same id is refused, and never acknowledged as if it were
// stored.
func TestOneRequestIDForTwoWritesIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		request := bytes.Repeat([]byte{9}, 16)
		ids := idsOf(hash4, 1, 2)
		id, second := ids[0], ids[1]
		first := &recordv1.PutRequest{Key: key(id), Data: []byte("once"), RequestId: request}
		put := func(in *recordv1.PutRequest) error {
			_, err := f.records.Put(f.ctx(), in)
			return err
		}
		must(t, put(first))
		others := map[string]func() error{
			"another record": func() error {
				return put(&recordv1.PutRequest{Key: key(second), Data: []byte("once"), RequestId: request})
			},
			"other data": func() error {
				return put(&recordv1.PutRequest{Key: key(id), Data: []byte("twice"), RequestId: request})
			},
			"a delete": func() error {
				_, err := f.records.Delete(f.ctx(), &recordv1.DeleteRequest{Key: key(id), RequestId: request})
				return err
			},
			"an upload": func() error {
				_, err := f.upload(&recordv1.UploadHeader{Key: key(id), RequestId: request}, []byte("third"))
				return err
			},
			"an upload of a blob": func() error {
				_, err := f.upload(&recordv1.UploadHeader{Key: key(id), RequestId: request}, cut(data(1, 2<<20), 1<<20)...)
				return err
			},
		}
		check := func() {
			t.Helper()
			for what, do := range others {
				t.Run(what, func(t *bubble) { want(t, do(), codes.InvalidArgument, "REQUEST_ID_REUSED") })
			}
			if err := put(first); err != nil {
				t.Errorf("the first write, repeated: %v", err)
			}
			f.holds(id, []byte("once"))
			f.absent(second)
			if n := f.blobs(); n != 0 {
				t.Errorf("%d blob files are left of refused uploads", n)
			}
		}
		check()
		f.shard.Kill()
		f.again(nil)
		check()
	})
}

// A call that the shard reads only after its deadline, for example because its process was suspended, writes nothing,
// because the caller no longer waits.
func TestAWriteWhoseCallerWaitsNoMoreIsNotBegun(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		f.put(3, []byte("x"))
		server := f.shard.calls.Records()
		late, cancel := context.WithDeadline(access.WithCall(t.Context(), access.Everybody), time.Now().Add(-time.Second))
		defer cancel()
		_, err := server.Put(late, &recordv1.PutRequest{Key: key(3), Data: []byte("y")})
		want(t, err, codes.DeadlineExceeded, "")
		_, err = server.Delete(late, &recordv1.DeleteRequest{Key: key(3)})
		want(t, err, codes.DeadlineExceeded, "")
		f.holds(3, []byte("x"))
	})
}

func TestGetPinsVersions(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			v1, v2 := f.put(3, []byte("one")), f.put(3, []byte("two"))
			gone := f.delete(3)
			other := f.put(3, []byte("three"))
			for version, d := range map[string]string{v1.GetVersion(): "one", v2.GetVersion(): "two",
				other.GetVersion(): "three"} {
				out, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(3), Version: version})
				if err != nil || string(out.GetRecord().GetData()) != d || out.GetRecord().GetVersion() != version {
					t.Errorf("version %s: %v, %v; want %s", version, out, err, d)
				}
			}
			out, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(3), Version: gone.GetVersion()})
			if err != nil || !out.GetRecord().GetDeleted() || len(out.GetRecord().GetData()) > 0 {
				t.Errorf("the delete version: %v, %v", out, err)
			}
			_, err = f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(3), Version: cursor.Version(1 << 50)})
			want(t, err, codes.NotFound, reason.VersionNotFound)
			// A version belongs to one record, so a read of another record does not find it.
			id := idsOf(hash4, hash4.GroupOf(3), 3)[2]
			v := f.put(id, []byte("else"))
			_, err = f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(3), Version: v.GetVersion()})
			want(t, err, codes.NotFound, reason.VersionNotFound)
			for _, bad := range []string{"0", "x", strings.Repeat("1", 100), "-1", v1.GetVersion() + "0"} {
				_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(3), Version: bad})
				want(t, err, codes.InvalidArgument, "")
			}
			_, err = f.records.Get(f.ctx(), &recordv1.GetRequest{})
			want(t, err, codes.InvalidArgument, "")
		})
	})
}

func TestGetMetadataOnly(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			f.put(3, data(3, 5000))
			out, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(3), MetadataOnly: true})
			rec := out.GetRecord()
			if err != nil || rec.GetSizeBytes() != 5000 || rec.Data != nil || rec.DataCrc32C != nil {
				t.Errorf("metadata only: %v, %v", rec, err)
			}
		})
	})
}

func TestListVersionsPages(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.Retention = group.Retention{Versions: 100} }).ready()
		var versions []string
		for i := range 25 {
			if i == 12 {
				versions = append(versions, f.delete(7).GetVersion())
				continue
			}
			versions = append(versions, f.put(7, data(7, i)).GetVersion())
		}
		slices.Reverse(versions)
		for _, size := range []int32{0, 1, 7, 24, 25, 26, 1000, 1001, math.MaxInt32} {
			var got []string
			in := &recordv1.ListVersionsRequest{Key: key(7), PageSize: size}
			for {
				out, err := f.records.ListVersions(f.ctx(), in)
				must(t, err)
				if size > 0 && len(out.GetVersions()) > int(size) {
					t.Errorf("page of %d has %d", size, len(out.GetVersions()))
				}
				for _, v := range out.GetVersions() {
					got = append(got, v.GetVersion())
					if v.Data != nil || v.GetDeleted() != (v.GetVersion() == versions[12]) {
						t.Errorf("version %v", v)
					}
				}
				if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
					break
				}
			}
			if !slices.Equal(got, versions) {
				t.Errorf("pages of %d give %v, want %v", size, got, versions)
			}
		}
		_, err := f.records.ListVersions(f.ctx(), &recordv1.ListVersionsRequest{Key: key(8)})
		want(t, err, codes.NotFound, reason.RecordNotFound)
		for _, in := range []*recordv1.ListVersionsRequest{
			{}, {Key: key(7), PageSize: -1}, {Key: key(7), PageToken: "nonsense"},
			{Key: key(7), PageToken: cursor.PageToken(8, 5)},
		} {
			_, err := f.records.ListVersions(f.ctx(), in)
			want(t, err, codes.InvalidArgument, "")
		}
	})
}

func TestFind(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(named, "s1", "a", "b", "c"), nil).ready()
		for _, g := range []string{"a", "c"} {
			if _, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 4, Group: g},
				Data: []byte(g)}); err != nil {
				t.Fatal(err)
			}
		}
		out, err := f.records.Find(f.ctx(), &recordv1.FindRequest{Id: 4})
		if err != nil || len(out.GetRecords()) != 2 || out.GetRecords()[0].GetKey().GetGroup() != "a" ||
			out.GetRecords()[1].GetKey().GetGroup() != "c" || out.GetRecords()[0].Data != nil {
			t.Errorf("find: %v, %v", out, err)
		}
		if out, err := f.records.Find(f.ctx(), &recordv1.FindRequest{Id: 5}); err != nil || len(out.GetRecords()) != 0 {
			t.Errorf("find of nothing: %v, %v", out, err)
		}
	})
}

func TestNamedGroupNames(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(named, "s1", "quotes"), nil).ready()
		for _, bad := range []string{"", ".x", "a b", "a/b", "ä", strings.Repeat("g", 254), "a\x00"} {
			_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: bad}})
			if code := answer.CodeOf(err); code == codes.OK {
				t.Errorf("group %.10q is accepted", bad)
			}
		}
		_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: ""}})
		want(t, err, codes.InvalidArgument, "")
		_, err = f.records.Get(f.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "other"}})
		want(t, err, codes.NotFound, reason.GroupNotFound)
		// The caller's view has a group that is not in this shard's view yet.
		_, err = f.records.Get(f.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "other"},
			RoutingEpoch: math.MaxUint64})
		want(t, err, codes.Unavailable, reason.GroupLoading)
	})
}

// justNow is a context that is not done when it is first checked, and is done when it is checked again.
type justNow struct {
	context.Context
	looks atomic.Int32
}

func (c *justNow) Err() error {
	if c.looks.Add(1) == 1 {
		return nil
	}
	return c.Context.Err()
}

// This test runs in real time, because no deadline passes during a call that takes no virtual time.
func TestDeadlinePassed(t *testing.T) {
	t.Parallel()
	f := start(t, newRegistry(hash4, "s1"), nil).ready()
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	_, err := f.records.Put(ctx, &recordv1.PutRequest{Key: key(1), Data: []byte("x")})
	if code := answer.CodeOf(err); code != codes.DeadlineExceeded {
		t.Errorf("code %v: %v", code, err)
	}
	// If the shard notices the end of the context after the write has begun, the outcome is unknown.
	gone, stop := context.WithCancel(access.WithCall(context.Background(), access.Everybody))
	stop()
	unknown := 0
	for range 50 {
		// A put succeeds if it completes before the shard checks the context again.
		if _, err = f.shard.calls.Records().Put(&justNow{Context: gone},
			&recordv1.PutRequest{Key: key(1), Data: []byte("x")}); err != nil {
			want(t, err, codes.Unknown, reason.OutcomeUnknown)
			unknown++
		}
	}
	if unknown == 0 {
		t.Error("no put saw its deadline pass")
	}
}
