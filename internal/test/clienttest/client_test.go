package clienttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/storetest"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// runBoth runs a test twice, with a client of the gateway and with a client that calls the shards directly. Each run
// has a new store.
func runBoth(t *testing.T, cfg storetest.Config, run func(t *testing.T, s *storetest.Server, c *client.Client)) {
	t.Helper()
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprintf("direct=%v", direct), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := storetest.StartWith(t, cfg)
				run(t, s, s.Client(t, client.Config{Direct: direct}))
			})
		})
	}
}

func TestPutGetDelete(t *testing.T) {
	runBoth(t, storetest.Config{Shards: 2}, func(t *testing.T, _ *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		for _, id := range []int64{0, 1, -1, math.MaxInt64, math.MinInt64} {
			key := client.Key{ID: id}
			stamp := time.Unix(0, -12345)
			attributes := map[string][]byte{"path": []byte("a/b"), "empty": {}}
			put, err := c.Put(ctx, key, []byte("data"), &client.PutOptions{Timestamp: stamp, Attributes: attributes})
			must.OK(t, err)
			got, err := c.Get(ctx, key, nil)
			must.OK(t, err)
			if put.Size != 4 || put.CRC32C != crc32.Checksum([]byte("data"), crc32.MakeTable(crc32.Castagnoli)) {
				t.Fatalf("%+v", put)
			}
			if string(got.Data) != "data" || !got.HasData || got.Size != 4 || got.Version != put.Version ||
				!got.Timestamp.Equal(stamp) ||
				!got.CommitTime.Equal(put.CommitTime) || !maps.EqualFunc(got.Attributes, attributes, bytes.Equal) ||
				got.Key.ID != id {
				t.Fatalf("put %+v, got %+v", put, got)
			}
			if meta, err := c.Get(ctx, key, &client.GetOptions{MetadataOnly: true}); err != nil || meta.HasData ||
				meta.Size != 4 {
				t.Fatalf("metadata: %+v, %v", meta, err)
			}
			deleted, err := c.Delete(ctx, key, nil)
			if err != nil || !deleted.Existed || deleted.Version == "" {
				t.Fatalf("delete: %+v, %v", deleted, err)
			}
			if _, err := c.Get(ctx, key, nil); !errors.Is(err, client.ErrNotFound) {
				t.Fatalf("get of a deleted record: %v", err)
			}
			if again, err := c.Delete(ctx, key, nil); err != nil || again.Existed {
				t.Fatalf("second delete: %+v, %v", again, err)
			}
		}
	})
}

func TestEmptyDataAreARecord(t *testing.T) {
	runBoth(t, storetest.Config{}, func(t *testing.T, _ *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		if _, err := c.Put(ctx, client.Key{ID: 1}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Get(ctx, client.Key{ID: 1}, nil); err != nil || got.Size != 0 || !got.HasData {
			t.Fatalf("%+v, %v", got, err)
		}
	})
}

func TestConditionsReportTheCurrentVersion(t *testing.T) {
	runBoth(t, storetest.Config{}, func(t *testing.T, _ *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		key := client.Key{ID: 5}
		if _, err := c.Delete(ctx, key, nil); err != nil {
			t.Fatal(err)
		}
		first, err := c.Put(ctx, key, []byte("1"), &client.PutOptions{IfAbsent: true})
		must.OK(t, err)
		var e *client.Error
		_, err = c.Put(ctx, key, []byte("2"), &client.PutOptions{IfAbsent: true})
		if !errors.Is(err, client.ErrExists) || !errors.As(err, &e) || e.Version != first.Version ||
			e.Code != codes.AlreadyExists {
			t.Fatalf("if absent: %v", err)
		}
		second, err := c.Put(ctx, key, []byte("2"), &client.PutOptions{IfVersion: first.Version})
		must.OK(t, err)
		_, err = c.Delete(ctx, key, &client.DeleteOptions{IfVersion: first.Version})
		if !errors.Is(err, client.ErrVersionMismatch) || !errors.As(err, &e) || e.Version != second.Version {
			t.Fatalf("if version: %v", err)
		}
		if old, err := c.Get(ctx, key, &client.GetOptions{Version: first.Version}); err != nil || string(old.Data) != "1" {
			t.Fatalf("the first version: %+v, %v", old, err)
		}
		var versions []string
		for r, err := range c.Versions(ctx, key) {
			must.OK(t, err)
			versions = append(versions, r.Version)
		}
		if len(versions) < 2 || versions[0] != second.Version || versions[1] != first.Version {
			t.Fatalf("versions %v, want %s and %s first", versions, second.Version, first.Version)
		}
	})
}

func TestARequestIDMakesAWriteRepeatable(t *testing.T) {
	runBoth(t, storetest.Config{}, func(t *testing.T, _ *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		id := client.NewRequestID()
		first, err := c.Put(ctx, client.Key{ID: 6}, []byte("x"), &client.PutOptions{RequestID: id})
		must.OK(t, err)
		again, err := c.Put(ctx, client.Key{ID: 6}, []byte("x"), &client.PutOptions{RequestID: id})
		if err != nil || !again.Repeated || again.Version != first.Version {
			t.Fatalf("%+v, then %+v, %v", first, again, err)
		}
		_, err = c.Put(ctx, client.Key{ID: 6}, []byte("y"), &client.PutOptions{RequestID: id})
		if !errors.Is(err, client.ErrRequestIDReused) || !errors.Is(err, client.ErrInvalid) ||
			errors.Is(err, client.ErrOutcomeUnknown) {
			t.Fatalf("other data under the same request id: %v", err)
		}
	})
}

func TestWrongInputIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := testContext(t)
		s := storetest.Start(t)
		c := s.Client(t, client.Config{})
		for name, options := range map[string]client.PutOptions{
			"both conditions":  {IfAbsent: true, IfVersion: "x"},
			"short request id": {RequestID: []byte("short")},
			"large attributes": {Attributes: map[string][]byte{"a": make([]byte, 70_000)}},
			"empty attribute":  {Attributes: map[string][]byte{"": {}}},
			"foreign version":  {IfVersion: "no version"},
			"no such time":     {Timestamp: time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)},
		} {
			if _, err := c.Put(ctx, client.Key{ID: 1}, nil, &options); !errors.Is(err, client.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := c.Put(ctx, client.Key{ID: 1, Group: "x"}, nil, nil); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("a group in Hash routing: %v", err)
		}
		for _, cfg := range []client.Config{{}, {Addresses: []string{s.Addr()}, CallTimeout: -1}} {
			if _, err := client.New(cfg); err == nil {
				t.Errorf("config %+v was taken", cfg)
			}
		}
		if _, err := c.NewBatcher(client.BatcherConfig{BytesMax: -1}); err == nil {
			t.Error("a negative limit of a batcher was taken")
		}
	})
}

// pattern returns n pseudo-random bytes, so that a test notices data that is misplaced. The bytes are the same in
// each call with the same n.
func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(n)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func TestRecordsOfAnySize(t *testing.T) {
	runBoth(t, storetest.Config{}, func(t *testing.T, _ *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		for _, size := range []int{1 << 20, 1<<20 + 1, 5<<20 + 7} {
			data, key := pattern(size), client.Key{ID: int64(size)}
			put, err := c.Put(ctx, key, data, nil)
			if err != nil {
				t.Fatalf("put of %d bytes: %v", size, err)
			}
			got, err := c.Get(ctx, key, nil)
			if err != nil || !bytes.Equal(got.Data, data) || got.Version != put.Version {
				t.Fatalf("get of %d bytes: %d bytes, %v", size, len(got.Data), err)
			}
			var out bytes.Buffer
			r, err := c.Download(ctx, key, &out, &client.DownloadOptions{Offset: 100, Length: 1000, Version: put.Version})
			if err != nil || !bytes.Equal(out.Bytes(), data[100:1100]) || r.Size != int64(size) {
				t.Fatalf("slice of %d bytes: %d bytes, %v", size, out.Len(), err)
			}
			if _, err := c.Open(ctx, key, &client.DownloadOptions{Offset: int64(size) + 1}); !errors.Is(err,
				client.ErrBadRange) {
				t.Fatalf("offset behind the end: %v", err)
			}
			if size > 1<<20 {
				if _, err := c.Get(ctx, key, &client.GetOptions{BytesMax: 1000}); !errors.Is(err, client.ErrTooLarge) {
					t.Fatalf("get of more than BytesMax: %v", err)
				}
			}
		}
	})
}

func TestUploadFromAReader(t *testing.T) {
	runBoth(t, storetest.Config{}, func(t *testing.T, _ *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		data := pattern(3<<20 + 1)
		// Data may come from a reader that implements io.Seeker, or from one that does not.
		for name, from := range map[string]io.Reader{"seeker": bytes.NewReader(data),
			"stream": iotest.OneByteReader(bytes.NewReader(data[:100_000]))} {
			key := client.Key{ID: int64(len(name))}
			if _, err := c.Upload(ctx, key, from, nil); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			r, err := c.Open(ctx, key, nil)
			must.OK(t, err)
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, data[:len(got)]) || int64(len(got)) != r.Record().Size {
				t.Fatalf("%s: %d bytes, %v", name, len(got), err)
			}
			must.OK(t, r.Close())
			if _, err := r.Read(make([]byte, 1)); err == nil {
				t.Fatal("read after Close")
			}
		}
		broken := errors.New("broken disk")
		key := client.Key{ID: 77}
		_, err := c.Upload(ctx, key, io.MultiReader(bytes.NewReader(data), iotest.ErrReader(broken)), nil)
		if !errors.Is(err, broken) {
			t.Fatalf("a reader that breaks: %v", err)
		}
		if _, err := c.Get(ctx, key, nil); !errors.Is(err, client.ErrNotFound) {
			t.Fatalf("after a reader that broke: %v", err)
		}
	})
}

func TestBatches(t *testing.T) {
	runBoth(t, storetest.Config{Shards: 2, Groups: 8}, func(t *testing.T, _ *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		const n = 3000
		items := make([]client.PutItem, n)
		for i := range items {
			items[i] = client.PutItem{Key: client.Key{ID: int64(i)}, Data: pattern(i)}
		}
		items[10].Data = pattern(2 << 20)
		items[20].Options.IfVersion = "bad"
		items[30].Options.RequestID = []byte("short")
		for i, out := range c.BatchPut(ctx, items) {
			if bad := i == 20 || i == 30; bad != (out.Err != nil) || bad && !errors.Is(out.Err, client.ErrInvalid) {
				t.Fatalf("put %d: %v", i, out.Err)
			}
		}
		gets := make([]client.GetItem, n+1)
		for i := range gets {
			gets[i].Key.ID = int64(n - i)
		}
		for i, out := range c.BatchGet(ctx, gets) {
			id := n - i
			if id == 20 || id == 30 || id == n {
				if !errors.Is(out.Err, client.ErrNotFound) {
					t.Fatalf("get %d: %v", id, out.Err)
				}
				continue
			}
			if out.Err != nil || !bytes.Equal(out.Record.Data, items[id].Data) {
				t.Fatalf("get %d: %d bytes, %v", id, len(out.Record.Data), out.Err)
			}
		}
		if out := c.BatchPut(ctx, nil); len(out) != 0 {
			t.Fatalf("%v", out)
		}
	})
}

func TestBatcherReportsEveryOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.StartWith(t, storetest.Config{Shards: 2})
		c := s.Client(t, client.Config{})
		ctx := testContext(t)
		b, err := c.NewBatcher(client.BatcherConfig{BytesMax: 100_000, FlushItems: 50})
		must.OK(t, err)
		var done atomic.Int64
		var all sync.WaitGroup
		for writer := range int64(4) {
			all.Go(func() {
				for i := range int64(500) {
					item := client.PutItem{Key: client.Key{ID: writer*500 + i}, Data: pattern(int(i))}
					if err := b.Put(ctx, item, func(_ client.PutResult, err error) {
						if err != nil {
							t.Error(err)
						}
						done.Add(1)
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if err := b.Flush(ctx); err != nil || done.Load() != 2000 {
			t.Fatalf("%d of 2000 outcomes, %v", done.Load(), err)
		}
		// Several puts of one key are applied in the order in which they were added.
		for i := range 200 {
			must.OK(t, b.Put(ctx, client.PutItem{Key: client.Key{ID: 9999}, Data: []byte(fmt.Sprint(i))}, nil))
		}
		must.OK(t, b.Close(ctx))
		if r, err := c.Get(ctx, client.Key{ID: 9999}, nil); err != nil || string(r.Data) != "199" {
			t.Fatalf("%q, %v", r.Data, err)
		}
		if err := b.Put(ctx, client.PutItem{}, nil); !errors.Is(err, client.ErrClosed) {
			t.Fatalf("put after close: %v", err)
		}
	})
}

// TestFlushDoesNotWaitForLaterPuts adds a put while Flush is waiting for earlier ones. Flush must return without
// waiting for this put.
func TestFlushDoesNotWaitForLaterPuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.StartWith(t, storetest.Config{}).Client(t, client.Config{})
		ctx := testContext(t)
		b, err := c.NewBatcher(client.BatcherConfig{})
		must.OK(t, err)
		var earlier atomic.Bool
		flushed, item := make(chan struct{}), client.PutItem{Key: client.Key{ID: 1}}
		must.OK(t, b.Put(ctx, item, func(client.PutResult, error) {
			if err := b.Put(ctx, item, func(client.PutResult, error) { <-flushed }); err != nil {
				t.Error(err)
			}
			earlier.Store(true)
		}))
		within, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := b.Flush(within); err != nil || !earlier.Load() {
			t.Errorf("%v; the earlier put has its outcome: %v", err, earlier.Load())
		}
		close(flushed)
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestNamedGroupsAndFind(t *testing.T) {
	runBoth(t, storetest.Config{Named: true, Shards: 2}, func(t *testing.T, _ *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		for _, group := range []string{"berlin", "paris", "rome"} {
			if _, err := c.Put(ctx, client.Key{ID: 1, Group: group}, []byte(group), nil); err != nil {
				t.Fatal(err)
			}
		}
		if named, err := c.Named(ctx); err != nil || !named {
			t.Fatalf("named: %v, %v", named, err)
		}
		found, err := c.Find(ctx, 1)
		if err != nil || len(found) != 3 || found[0].Key.Group != "berlin" || found[2].Key.Group != "rome" {
			t.Fatalf("%+v, %v", found, err)
		}
		if _, err := c.Get(ctx, client.Key{ID: 1, Group: "oslo"}, nil); !errors.Is(err, client.ErrGroupNotFound) {
			t.Fatalf("get in no group: %v", err)
		}
		if err := c.CreateGroup(ctx, "rome"); !errors.Is(err, client.ErrExists) {
			t.Fatalf("create a group that is there: %v", err)
		}
		if err := c.DeleteGroup(ctx, "rome"); !errors.Is(err, client.ErrGroupNotEmpty) ||
			!strings.Contains(err.Error(), "delete the records of the group first") {
			t.Fatalf("delete a group with a record: %v", err)
		}
		if _, err := c.Delete(ctx, client.Key{ID: 1, Group: "rome"}, nil); err != nil {
			t.Fatal(err)
		}
		if err := c.DeleteGroup(ctx, "rome"); !errors.Is(err, client.ErrGroupNotEmpty) ||
			!strings.Contains(err.Error(), "a compaction drops 10m0s after the delete") ||
			strings.Contains(err.Error(), "first") {
			t.Fatalf("delete a group without records that holds a tombstone: %v", err)
		}
		if err := c.DeleteGroup(ctx, "oslo"); !errors.Is(err, client.ErrGroupNotFound) {
			t.Fatalf("delete no group: %v", err)
		}
		if err := errors.Join(c.CreateGroup(ctx, "oslo"), c.DeleteGroup(ctx, "oslo")); err != nil {
			t.Fatalf("delete an empty group: %v", err)
		}
		if _, err := c.Put(ctx, client.Key{ID: 1}, nil, nil); !errors.Is(err, client.ErrInvalid) {
			t.Fatalf("put without a group: %v", err)
		}
	})
}

func TestScanGivesEveryRecordOnce(t *testing.T) {
	runBoth(t, storetest.Config{Shards: 2, Groups: 5}, func(t *testing.T, _ *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		const n = 2000
		items := make([]client.PutItem, n)
		for i := range items {
			items[i] = client.PutItem{Key: client.Key{ID: int64(i)}, Data: pattern(2000)}
		}
		for _, out := range c.BatchPut(ctx, items) {
			if out.Err != nil {
				t.Fatal(out.Err)
			}
		}
		for _, options := range []client.ScanOptions{{}, {Parallel: 3, SplitBytes: 1 << 20}, {MetadataOnly: true}} {
			seen := map[int64]bool{}
			for r, err := range c.Scan(ctx, &options) {
				must.OK(t, err)
				if seen[r.Key.ID] || r.HasData == options.MetadataOnly || !options.MetadataOnly &&
					!bytes.Equal(r.Data, items[0].Data) {
					t.Fatalf("%+v: record %d: seen %v, has data %v", options, r.Key.ID, seen[r.Key.ID], r.HasData)
				}
				seen[r.Key.ID] = true
			}
			if len(seen) != n {
				t.Fatalf("%+v: %d of %d records", options, len(seen), n)
			}
		}
		// A scan can be stopped, and another scan can continue from its cursor.
		var cursor []byte
		seen, last := []int64{}, 0
		for r, err := range c.Scan(ctx, &client.ScanOptions{OnCursor: func(c []byte) { cursor, last = c, len(seen) }}) {
			must.OK(t, err)
			if seen = append(seen, r.Key.ID); len(seen) > n/2 && cursor != nil {
				break
			}
		}
		seen = seen[:last]
		for r, err := range c.Scan(ctx, &client.ScanOptions{Cursor: cursor}) {
			must.OK(t, err)
			seen = append(seen, r.Key.ID)
		}
		slices.Sort(seen)
		if len(slices.Compact(seen)) != n {
			t.Fatalf("%d of %d records over a cursor", len(seen), n)
		}
		for _, err := range c.Scan(ctx, &client.ScanOptions{Cursor: []byte("bad")}) {
			if !errors.Is(err, client.ErrInvalid) {
				t.Fatalf("a bad cursor: %v", err)
			}
		}
	})
}

func TestCallsContinueAfterShardCrash(t *testing.T) {
	runBoth(t, storetest.Config{Shards: 2, Groups: 4}, func(t *testing.T, s *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		var acknowledged sync.Map
		var all sync.WaitGroup
		stop := make(chan struct{})
		for writer := range int64(4) {
			all.Go(func() {
				for i := int64(0); ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					id := writer<<32 + i
					if _, err := c.Put(ctx, client.Key{ID: id}, []byte(fmt.Sprint(id)), nil); err != nil {
						t.Errorf("put %d: %v", id, err)
						return
					}
					acknowledged.Store(id, true)
				}
			})
		}
		for range 3 {
			s.KillShard(1)
			must.OK(t, s.RestartShard(1))
		}
		close(stop)
		all.Wait()
		n := 0
		acknowledged.Range(func(key, _ any) bool {
			id, _ := key.(int64)
			n++
			r, err := c.Get(ctx, client.Key{ID: id}, nil)
			if err != nil || string(r.Data) != fmt.Sprint(id) {
				t.Errorf("acknowledged record %d: %q, %v", id, r.Data, err)
			}
			return true
		})
		if n == 0 {
			t.Fatal("nothing was acknowledged")
		}
	})
}

func TestErrorsSayWhatWasDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Start(t)
		c := s.Client(t, client.Config{})
		_, err := c.Get(testContext(t), client.Key{ID: 42}, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "sheaf: get 42: RECORD_NOT_FOUND: ") {
			t.Fatalf("got %v", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = c.Put(ctx, client.Key{ID: 42}, nil, nil)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("a cancelled put: %v", err)
		}
	})
}
