package shard

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
)

// cluster consists of several shards of one store, all in this process.
type cluster struct {
	t        testing.TB
	registry *memRegistry
	shards   map[string]*fixture // running shards
	stopped  map[string]*fixture
}

// newCluster starts shards. The target of each group is the list target, rotated by the group's number. Therefore
// each group gets as many copies as there are shards in the list.
func newCluster(t testing.TB, routing placement.Routing, target []string, more ...string) *cluster {
	c := &cluster{t: t, registry: newRegistry(routing, ""), shards: map[string]*fixture{}, stopped: map[string]*fixture{}}
	c.registry.view.Meta.Copies = len(target)
	c.aim(target...)
	for _, name := range append(slices.Clone(target), more...) {
		c.add(name, nil)
	}
	return c
}

// settledCluster starts the shards a, b and c, and waits until each group has its copies on them.
func settledCluster(t testing.TB, routing placement.Routing) *cluster {
	t.Helper()
	c := newCluster(t, routing, abc)
	c.settled(abc...)
	return c
}

// aim sets the same target for all groups.
func (c *cluster) aim(shards ...string) {
	c.registry.change(func(v *placement.View) {
		for n := range v.Meta.Routing.Groups {
			name := placement.GroupName(n)
			turned := append(slices.Clone(shards[n%len(shards):]), shards[:n%len(shards)]...)
			v.Targets[name] = placement.Target{Group: name, Shards: turned, Revision: int64(v.Epoch)}
		}
	})
}

func (c *cluster) add(name string, change func(*Config)) *fixture {
	c.t.Helper()
	f := start(c.t, c.registry, func(cfg *Config) {
		cfg.Name, cfg.SegmentBytes = name, 64<<10
		cfg.Logger = slog.New(slog.NewTextHandler(testWriter{c.t}, &slog.HandlerOptions{Level: slog.LevelInfo})).
			With("shard", name)
		if change != nil {
			change(cfg)
		}
	})
	c.shards[name] = f
	return f
}

func (c *cluster) kill(name string) {
	c.shards[name].shard.Kill()
	c.stopped[name] = c.shards[name]
	delete(c.shards, name)
}

func (c *cluster) restart(name string) {
	f := c.stopped[name]
	delete(c.stopped, name)
	c.shards[name] = f.again(nil)
}

func (c *cluster) eventually(what string, is func() bool) {
	c.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			for name, f := range c.shards {
				c.t.Logf("%s: %+v", name, f.shard.Status())
			}
			c.t.Fatalf("waited in vain: %s; etcd holds %+v", what, c.registry.now().Groups)
		}
	}
}

// membersOn returns the shards that, according to etcd, have a group's voters. They are sorted. It returns nil while
// the group has learners.
func (c *cluster) membersOn(name string) []string {
	var shards []string
	for _, m := range c.registry.now().Groups[name].Members {
		if m.Role != placement.Voter {
			return nil
		}
		shards = append(shards, m.Shard)
	}
	slices.Sort(shards)
	return shards
}

// settled waits until all groups are on exactly these shards.
func (c *cluster) settled(shards ...string) {
	c.t.Helper()
	slices.Sort(shards)
	c.eventually(fmt.Sprintf("all groups are on %v", shards), func() bool {
		for name := range c.registry.now().Groups {
			if !slices.Equal(c.membersOn(name), shards) {
				return false
			}
		}
		return true
	})
}

// call runs do with one shard after another until one of them responds as the leader.
func (c *cluster) call(do func(f *fixture) error) {
	c.t.Helper()
	var last error
	c.eventually("a leader answers", func() bool {
		for _, name := range slices.Sorted(maps.Keys(c.shards)) {
			if last = do(c.shards[name]); last == nil {
				return true
			}
			switch status.Code(last) {
			case codes.Unavailable, codes.FailedPrecondition, codes.Unknown:
			default:
				c.t.Fatalf("on %s: %v", name, last)
			}
		}
		return false
	})
}

func (c *cluster) put(id int64, data []byte) {
	c.t.Helper()
	request := [16]byte{1, byte(id), byte(id >> 8), byte(len(data)), byte(len(data) >> 8), byte(len(data) >> 16)}
	c.call(func(f *fixture) error {
		_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id), Data: data, RequestId: request[:]})
		return err
	})
}

// fill puts the records from 0 to n-1, each with size bytes of data.
func (c *cluster) fill(n int64, size int) {
	c.t.Helper()
	for id := range n {
		c.put(id, data(id, size))
	}
}

// filled checks that the leaders return the records that fill wrote.
func (c *cluster) filled(n int64, size int) {
	c.t.Helper()
	for id := range n {
		c.holds(id, data(id, size))
	}
}

// upload stores a record as a blob.
func (c *cluster) upload(id int64, data []byte) {
	c.t.Helper()
	c.call(func(f *fixture) error {
		stream, err := f.records.Upload(f.ctx())
		if err != nil {
			return err
		}
		_ = stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(
			id)}}})
		for part := range slices.Chunk(data, 1<<20) {
			_ = stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: part}})
		}
		_, err = stream.CloseAndRecv()
		return err
	})
}

// holds checks that the leader returns exactly this data for the record.
func (c *cluster) holds(id int64, want []byte) {
	c.t.Helper()
	c.call(func(f *fixture) error {
		stream, err := f.records.Download(f.ctx(), &recordv1.DownloadRequest{Key: key(id)})
		if err != nil {
			return err
		}
		var got []byte
		for {
			part, err := stream.Recv()
			if err != nil && status.Code(err) != codes.Unknown {
				return err
			}
			// All other errors were handled above, so this one is io.EOF, for which status.Code returns Unknown.
			if err != nil {
				break
			}
			got = append(got, part.GetChunk().GetData()...)
		}
		if !bytes.Equal(got, want) {
			c.t.Fatalf("record %d: %d bytes, want %d", id, len(got), len(want))
		}
		return nil
	})
}

var abc = []string{"a", "b", "c"}

func TestGroupsAreMadeWithTheirCopies(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, hash4)
		c.fill(40, 100)
		for _, name := range abc {
			c.kill(name)
			c.filled(40, 100)
			c.put(100, data(100, 10))
			c.restart(name)
		}
		c.eventually("the targets lead", func() bool {
			for name, g := range c.registry.now().Groups {
				if g.Leader != c.registry.now().Targets[name].Shards[0] {
					return false
				}
			}
			return true
		})
	})
}

func TestMetricsReportPeers(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		metrics := prometheus.NewRegistry()
		c := newCluster(t, placement.Routing{Mode: placement.Hash, Groups: 1}, []string{"a", "b"})
		c.add("c", func(cfg *Config) { cfg.Registry = metrics })
		c.registry.change(func(v *placement.View) { v.Meta.Copies = 3 })
		c.aim(abc...)
		c.settled(abc...)
		c.put(1, data(1, 10))
		peer := func(name string, labels map[string]string) (value float64) {
			families, err := metrics.Gather()
			must(t, err)
			value = -1
			for _, f := range families {
				for _, m := range f.GetMetric() {
					match := f.GetName() == name
					for _, l := range m.GetLabel() {
						if want, ok := labels[l.GetName()]; ok && want != l.GetValue() {
							match = false
						}
					}
					if match {
						value = m.GetGauge().GetValue() + m.GetCounter().GetValue()
					}
				}
			}
			return value
		}
		a := map[string]string{"peer": "a"}
		c.eventually("a is alive", func() bool {
			return peer("sheaf_shard_peer_alive", a) == 1 && peer("sheaf_shard_peer_sent_messages_total", nil) > 0 &&
				peer("sheaf_shard_peer_connects_total", nil) >= 2 && peer("sheaf_shard_peer_queued_bytes", a) >= 0 &&
				peer("sheaf_shard_peer_silence_seconds", a) < 60
		})
		c.kill("a")
		c.eventually("a is silent", func() bool {
			return peer("sheaf_shard_peer_alive", a) == 0 && peer("sheaf_shard_peer_silence_seconds", a) > 0
		})
		if peer("sheaf_shard_peer_dropped_messages_total", map[string]string{"reason": "down"}) < 0 ||
			peer("sheaf_shard_peer_exports", nil) != 0 {
			t.Error("what is dropped, or exported, is not told")
		}
	})
}

// If a shard is not the leader of a group, its error names the leader.
func TestOthersNameTheLeader(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, placement.Routing{Mode: placement.Hash, Groups: 1})
		c.put(1, data(1, 10))
		c.eventually("each of the others names a's address", func() bool {
			for _, name := range []string{"b", "c"} {
				f := c.shards[name]
				for _, err := range []error{
					func() error { _, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(1)}); return err }(),
					func() error { _, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(1)}); return err }(),
					func() error { _, err := f.records.Delete(f.ctx(), &recordv1.DeleteRequest{Key: key(1)}); return err }(),
				} {
					if reasonOf(err) != reason.NotLeader || metadataOf(err, "address") != c.shards["a"].shard.Addr() {
						return false
					}
				}
			}
			return true
		})
	})
}

func TestAMoveFollowsItsTarget(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		for copies, from := range map[int][]string{1: {"a"}, 3: abc} {
			t.Run(fmt.Sprint(copies, " copies"), func(t *bubble) {
				c := newCluster(t, hash4, from, "d")
				c.settled(from...)
				blob := data(7, 3<<20)
				c.upload(7, blob)
				for id := int64(10); id < 200; id++ {
					c.put(id, data(id, 5000))
				}
				to := append(slices.Clone(from[1:]), "d")
				c.aim(to...)
				for id := int64(200); id < 260; id++ {
					c.put(id, data(id, 100))
				}
				c.settled(to...)
				a := c.shards["a"]
				c.eventually("a has left all groups", func() bool {
					return len(a.shard.Status().Groups) == 0 && len(trashOf(t, a)) == 4
				})
				c.holds(7, blob)
				for id := int64(10); id < 260; id++ {
					c.holds(id, data(id, map[bool]int{true: 5000, false: 100}[id < 200]))
				}
				// The groups move back to their previous shards, where they become new replicas.
				c.aim(from...)
				c.settled(from...)
				c.holds(7, blob)
				c.holds(10, data(10, 5000))
			})
		}
	})
}

func trashOf(t testing.TB, f *fixture) []string {
	t.Helper()
	return filesIn(t, f.cfg.FS, filepath.Join(f.cfg.Dir, "trash"))
}

func TestTheTrashIsDeletedLater(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, hash4, []string{"a"}, "d")
		c.settled("a")
		c.put(1, data(1, 10))
		c.aim("d")
		c.settled("d")
		a := c.shards["a"]
		c.eventually("four folders are in the trash", func() bool { return len(trashOf(t, a)) == 4 })
		if err := a.shard.compactor.Trash.Empty(time.Now().Add(59 * time.Minute)); err != nil || len(trashOf(t, a)) != 4 {
			t.Errorf("before its time: %v, left %v", err, trashOf(t, a))
		}
		other := filepath.Join(a.cfg.Dir, "trash", "put-here-by-a-person")
		must(t, a.cfg.FS.MkdirAll(other))
		if err := a.shard.compactor.Trash.Empty(time.Now().Add(61 * time.Minute)); err != nil || len(trashOf(t, a)) != 1 {
			t.Errorf("after its time: %v, left %v", err, trashOf(t, a))
		}
		c.holds(1, data(1, 10))
	})
}

func TestAReplicaFarBehindIsInstalledAnew(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, placement.Routing{Mode: placement.Hash, Groups: 1})
		c.put(0, data(0, 10))
		c.kill("c")
		for n := range 40 {
			c.fill(10, 1000+n)
		}
		c.upload(77, data(77, 2<<20))
		for _, name := range []string{"a", "b"} {
			f := c.shards[name]
			if _, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", All: true}); err != nil {
				t.Fatal(err)
			}
		}
		c.restart("c")
		c.eventually("c has everything", func() bool {
			sv := c.shards["c"].shard.replicas.Routes().Served(c.registry.now().Groups["0"].UUID)
			for _, name := range []string{"a", "b"} {
				other := c.shards[name].shard.replicas.Routes().Served(c.registry.now().Groups["0"].UUID)
				if sv == nil || sv.Log().AppliedIndex() < other.Log().AppliedIndex() {
					return false
				}
			}
			return true
		})
		c.kill("a")
		c.filled(10, 1039)
		c.holds(77, data(77, 2<<20))
	})
}

// A shard that is stopped transfers the leadership of its groups, so that callers do not have to wait for an
// election.
func TestAShardThatStopsHandsTheLeadOver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, hash4)
		c.fill(8, 10)
		c.eventually("a leads something", func() bool {
			for _, g := range c.shards["a"].shard.Status().Groups {
				if g.Leader {
					return true
				}
			}
			return false
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		for id := range int64(8) { // Reads renew the lease. That must not prevent the transfer.
			c.holds(id, data(id, 10))
		}
		a := c.shards["a"].shard
		leads := func() string {
			for _, g := range a.Status().Groups {
				if g.Leader {
					return g.Group
				}
			}
			return ""
		}
		var began time.Time
		// If the disks are slow, a single attempt may not be enough.
		c.eventually("a leads nothing", func() bool {
			began = time.Now()
			a.steerer.HandOver(ctx)
			return leads() == ""
		})
		// The targets name shard a first, and shard a is still registered. Nevertheless it must not become a leader again
		// before it has stopped.
		const leadRest = 5 * time.Second // same value as in package lead
		for end := time.Now().Add(leadRest / 5); time.Now().Before(end); {
			// If the machine stood still for longer than leadRest, shard a is allowed to become a leader again.
			if group := leads(); group != "" && time.Since(began) < leadRest {
				t.Fatalf("a leads group %s again", group)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}
