package shard

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/serve"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// watched is a Watch together with the changes that it has returned.
type watched struct {
	f      *fixture
	stream recordv1.RecordService_WatchClient
	cursor []byte
	state  map[int64][]byte // latest data of each record
	told   int              // number of received records
	stop   context.CancelFunc
}

func (f *fixture) watch(group string, from []byte) *watched {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.ctx())
	f.t.Cleanup(cancel)
	stream, err := f.records.Watch(ctx, &recordv1.WatchRequest{Group: group, Cursor: from})
	must(f.t, err)
	return &watched{f: f, stream: stream, state: map[int64][]byte{}, stop: cancel}
}

// next receives one message. It returns the stream's error if the stream has ended.
func (w *watched) next() error {
	out, err := w.stream.Recv()
	if err != nil {
		return err
	}
	if len(out.GetCursor()) == 0 {
		w.f.t.Error("a message without a cursor")
	}
	w.cursor = out.GetCursor()
	for _, r := range out.GetRecords() {
		w.told++
		if delete(w.state, r.GetKey().GetId()); !r.GetDeleted() {
			w.state[r.GetKey().GetId()] = r.GetData()
		}
	}
	return nil
}

// until receives messages until the state equals want.
func (w *watched) until(want map[int64][]byte) {
	w.f.t.Helper()
	for !w.is(want) {
		if err := w.next(); err != nil {
			w.f.t.Fatalf("%v; %d records of %d", err, len(w.state), len(want))
		}
	}
}

func (w *watched) is(want map[int64][]byte) bool {
	for id, data := range want {
		if got, ok := w.state[id]; !ok || !bytes.Equal(got, data) {
			return false
		}
	}
	return len(w.state) == len(want)
}

var hash1 = placement.Routing{Mode: placement.Hash, Groups: 1}

func TestWatchReportsWhatChanges(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash1, "s1"), nil).ready()
		f.put(1, []byte("before"))
		w := f.watch("0", nil)
		if err := w.next(); err != nil || w.told != 0 {
			t.Fatalf("the first message: %d records, %v", w.told, err)
		}
		first := w.cursor
		f.put(2, []byte("two"))
		w.until(map[int64][]byte{2: []byte("two")})
		f.put(1, []byte("one"))
		f.put(3, []byte("three"))
		f.delete(2)
		want := map[int64][]byte{1: []byte("one"), 3: []byte("three")}
		w.until(want)
		last := w.cursor
		w.stop()

		// A watch from the first cursor returns the latest state of each changed record once, even after a restart.
		f.stop()
		f.again(nil).ready()
		again := f.watch("0", first)
		for again.told < 3 {
			must(t, again.next())
		}
		if !again.is(want) || again.told != 3 {
			t.Fatalf("told %d records, %v", again.told, again.state)
		}
		// A watch from the last cursor returns only later changes.
		behind := f.watch("0", last)
		f.put(9, []byte("nine"))
		behind.until(map[int64][]byte{9: []byte("nine")})
		if behind.told != 1 {
			t.Errorf("%d records, one is new", behind.told)
		}
	})
}

func TestWatchExpiresBelowForgottenDeletes(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash1, "s1"), nil).ready()
		w := f.watch("0", nil)
		must(t, w.next())
		first := w.cursor
		f.put(1, []byte("x"))
		f.delete(1)
		f.put(2, []byte("y"))
		w.until(map[int64][]byte{2: []byte("y")})
		for range 2 {
			if _, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", All: true}); err != nil {
				t.Fatal(err)
			}
		}
		old := f.watch("0", first)
		for err := error(nil); err == nil; {
			if err = old.next(); err != nil {
				want(t, err, codes.OutOfRange, reason.CursorExpired)
			}
		}
		if old.told != 0 {
			t.Errorf("%d records were told before", old.told)
		}
		f.put(3, []byte("z")) // a stream that has read everything continues
		w.until(map[int64][]byte{2: []byte("y"), 3: []byte("z")})
	})
}

func TestWatchRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		w := f.watch("1", nil)
		must(t, w.next())
		changed := bytes.Clone(w.cursor)
		changed[20]++
		future := cursor.Place{Group: f.registry.now().Groups["1"].UUID, Index: 1 << 40}
		for name, c := range map[string]struct {
			group  string
			cursor []byte
			code   codes.Code
			reason string
		}{
			"no group":           {"", nil, codes.InvalidArgument, ""},
			"no such group":      {"7", nil, codes.InvalidArgument, ""},
			"a cut cursor":       {"1", w.cursor[:len(w.cursor)-1], codes.InvalidArgument, ""},
			"a changed cursor":   {"1", changed, codes.InvalidArgument, ""},
			"of another group":   {"2", w.cursor, codes.InvalidArgument, ""},
			"a cursor of a scan": {"1", (&cursor.Cursor{Kind: cursor.Resume, Group: "1"}).Encode(), codes.InvalidArgument, ""},
			"of the future":      {"1", future.Encode(), codes.OutOfRange, reason.CursorExpired},
		} {
			t.Run(name, func(t *bubble) {
				w := f.watch(c.group, c.cursor)
				for err := error(nil); err == nil; {
					if err = w.next(); err != nil {
						want(t, err, c.code, c.reason)
					}
				}
			})
		}
	})
}

// A stalled reader delays no other caller, and costs no more memory than one message. When the reader continues, it
// receives the latest states.
func TestManyWatchWhileOneDoesNotRead(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash1, "s1"), func(c *Config) { c.sendTimeout = time.Hour }).ready()
		slow := f.watch("0", nil)
		must(t, slow.next())
		const ids, rounds, size = 20, 6, 50_000
		watchers := soaktest.Pick(40, 40, 12)
		want := map[int64][]byte{}
		for id := range int64(ids) {
			want[id] = data(id+1000*(rounds-1), size)
		}
		var all sync.WaitGroup
		streams := make([]*watched, watchers)
		for i := range streams {
			streams[i] = f.watch("0", nil)
			must(t, streams[i].next())
		}
		for _, w := range streams {
			all.Go(func() {
				for !w.is(want) {
					if err := w.next(); err != nil {
						t.Error(err)
						return
					}
				}
				w.stop()
			})
		}
		for round := range int64(rounds) {
			for id := range int64(ids) {
				f.put(id, data(id+1000*round, size))
			}
		}
		all.Wait()
		if held := f.shard.calls.BytesInFlight(); held > serve.WatchBytes {
			t.Errorf("%d bytes are held for one reader that does not read", held)
		}
		slow.until(want)
		slow.stop()
		f.eventually("nothing is held", func() bool {
			return f.shard.calls.BytesInFlight() == 0 && f.shard.calls.Calls() == 0
		})
	})
}

func TestWatchEndsWithTheGroup(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		leaves, stays := f.watch("2", nil), f.watch("1", nil)
		for _, w := range []*watched{leaves, stays} {
			must(t, w.next())
		}
		f.registry.change(func(v *placement.View) {
			g := v.Groups["2"]
			g.Members = []placement.Member{{Shard: "s2", VolumeUUID: uuid.New(), RaftID: 1}}
			v.Groups["2"] = g
			delete(v.Targets, "2")
		})
		want(t, leaves.next(), codes.Unavailable, reason.NoLeader)
		f.stop()
		want(t, stays.next(), codes.Unavailable, reason.Stopping)
	})
}

// A watched group moves, and its leader dies. The watch ends with an error that states the reason. A new watch at the
// next leader continues from the cursor and misses nothing.
func TestAWatchGoesOnAtTheNextLeader(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, hash1, abc, "d")
		c.settled(abc...)
		var from []byte
		state := map[int64][]byte{}
		ends := map[string]int{}
		// follow watches the group at its current leader until the watched state equals want.
		follow := func(want map[int64][]byte) {
			t.Helper()
			c.eventually("the changes come", func() bool {
				names := slices.Sorted(maps.Keys(c.shards))
				slices.Reverse(names) // so that d, which has no copy at first, is tried before the leader
				for _, name := range names {
					f := c.shards[name]
					w := f.watch("0", from)
					w.state = state
					var err error
					for err == nil && !w.is(want) {
						if err = w.next(); err == nil {
							from = w.cursor
						}
					}
					w.stop()
					if err == nil {
						return true
					}
					ends[reasonOf(err)]++
					switch reasonOf(err) {
					case reason.NoLeader, reason.NotLeader, reason.WrongShard, reason.GroupLoading, reason.Stopping:
					default:
						t.Fatalf("a watch ended with %v", err)
					}
				}
				return false
			})
		}
		want := map[int64][]byte{}
		put := func(first, n int64) {
			for id := first; id < first+n; id++ {
				want[id] = data(id, 3000)
				c.put(id, want[id])
			}
		}
		c.call(func(f *fixture) error {
			w := f.watch("0", nil)
			err := w.next()
			from = w.cursor
			return err
		})
		put(0, 20)
		follow(want)
		c.aim("b", "c", "d")
		put(20, 40)
		follow(want)
		c.settled("b", "c", "d")
		put(50, 30) // some of these records are written again
		var leader string
		c.eventually("etcd knows who leads", func() bool {
			leader = c.registry.now().Groups["0"].Leader
			return c.shards[leader] != nil
		})
		c.kill(leader)
		put(90, 10)
		follow(want)
		if ends[reason.NotLeader]+ends[reason.NoLeader]+ends[reason.WrongShard] == 0 {
			t.Errorf("no watch met a shard that does not lead: %v", ends)
		}
	})
}
