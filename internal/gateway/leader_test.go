package gateway_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// shareGroups gives every group in a cluster a copy on each of the shards, and makes the named leader lead all groups.
func shareGroups(c *cluster, leader string, term uint64, shards ...string) {
	c.t.Helper()
	var revision int64
	for n := range c.meta.Routing.Groups {
		g, err := c.store.Group(c.ctx, placement.GroupName(n))
		must.OK(c.t, err)
		g.Members, g.Leader, g.Term = nil, leader, term
		for i, name := range shards {
			g.Members = append(g.Members, placement.Member{Shard: name, VolumeUUID: c.shards[name].volume,
				RaftID: uint64(2*i + 1)})
		}
		if g, err = c.store.PutGroup(c.ctx, g); err != nil {
			c.t.Fatal(err)
		}
		revision = g.Revision
	}
	c.awaitEpoch(revision)
}

// notLeader is the error of a shard that does not lead the group, but knows the leader's address.
func notLeader(address string) error {
	st, err := status.New(codes.FailedPrecondition, "another leads").WithDetails(&errdetails.ErrorInfo{
		Domain: "sheaf.dev", Reason: "NOT_LEADER", Metadata: map[string]string{"address": address},
	})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// refuseAll makes the stand-in return err for every call.
func (s *standIn) refuseAll(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = func(string, *recordv1.RecordKey) error { return err }
}

func TestCallsFollowTheLeaderThatAShardNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a", "b", "c")
		shareGroups(c, "a", 1, "a", "b", "c")
		c.shards["a"].refuseAll(notLeader(c.shards["c"].address))
		for id := range int64(20) {
			if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(id), Data: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := c.shards["a"].count("Put"), c.shards["b"].count("Put"); a != 1 || b != 0 {
			t.Errorf("%d calls went to a, %d to b; c leads, and the first answer said so", a, b)
		}
		// An unrelated change in etcd does not change the leader that the gateway has learned. A new leader in etcd does.
		shareGroups(c, "a", 1, "a", "b", "c")
		if _, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(1)}); err != nil || c.shards["a"].count("Get") != 0 {
			t.Errorf("%v; %d calls went to a", err, c.shards["a"].count("Get"))
		}
		shareGroups(c, "b", 2, "a", "b", "c")
		if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1), Data: []byte("x")}); err != nil ||
			c.shards["b"].count("Put") != 1 {
			t.Errorf("%v; %d calls went to b", err, c.shards["b"].count("Put"))
		}
	})
}

func TestCallsTryOtherShardsWithoutNamedLeader(t *testing.T) {
	for name, fault := range map[string]error{
		"no leader": refuse(codes.Unavailable, "NO_LEADER"), "stopping": refuse(codes.Unavailable, "STOPPING"),
		"nobody known": notLeader(""),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, hash(1), gateway.Config{}, "a", "b", "c")
				shareGroups(c, "a", 1, "a", "b", "c")
				c.shards["a"].refuseAll(fault)
				c.shards["b"].refuseAll(fault)
				if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1), Data: []byte("x")}); err != nil {
					t.Fatal(err)
				}
				stream, err := c.records.BatchPut(c.ctx)
				must.OK(t, err)
				must.OK(t, stream.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{{Key: key(2)},
					{Key: key(3)}}}))
				out, err := stream.Recv()
				if err != nil || len(out.GetResults()) != 2 || out.GetResults()[0].GetStatus() != nil ||
					out.GetResults()[1].GetStatus() != nil {
					t.Fatalf("batch: %v, %v", out, err)
				}
			})
		})
	}
}

// soon is longer than the time after which a gateway abandons a shard that hangs, and far shorter than the time after
// which gRPC's keepalive would abort the calls to that shard. The time is virtual, so it does not depend on the
// machine's speed.
const soon = 4 * time.Second

// Calls to a shard that hangs entirely are soon retried at another shard, even if etcd still names the first one as
// leader. New calls avoid the shard that hangs.
func TestCallsAvoidHungShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := hash(2)
		meta.Copies = 3
		c := newCluster(t, meta, gateway.Config{}, "a", "b", "c")
		shareGroups(c, "a", 1, "a", "b", "c")
		put := func(id int64, request string) {
			t.Helper()
			if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(id), Data: []byte("x"),
				RequestId: []byte(request)}); err != nil {
				t.Fatal(err)
			}
		}
		put(1, "0123456789abcdef")
		a := c.shards["a"]
		if a.count("Put") != 1 {
			t.Fatal("a does not lead")
		}
		a.listener.Hang()
		began := time.Now()
		put(1, "0123456789abcdeg")
		if took := time.Since(began); took > soon {
			t.Errorf("a call left the shard after %v", took)
		}
		began = time.Now()
		for id := range int64(100) {
			put(id, "0123456789abcd"+string(rune('0'+id/10))+string(rune('0'+id%10)))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("100 calls after that waited for %v", took)
		}
		if b := c.shards["b"].count("Put"); b != 101 {
			t.Errorf("%d calls went to b", b)
		}
		a.listener.GoOn()
		for c.shards["a"].count("Get") == 0 && c.ctx.Err() == nil { // until shard a leads again and responds
			shareGroups(c, "b", 2, "a", "b", "c")
			shareGroups(c, "a", 3, "a", "b", "c")
			if _, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(1)}); err != nil &&
				status.Code(err) != codes.NotFound {
				t.Fatal(err)
			}
		}
	})
}

// If a shard hangs, calls to it are aborted when another shard leads and the first shard's registration has expired.
// They do not wait for their deadline.
func TestCallsAtHungShardAreRetriedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a", "b", "c")
		shareGroups(c, "a", 1, "a", "b", "c")
		hung, cancel := context.WithCancel(context.Background())
		defer cancel()
		a := c.shards["a"]
		a.mu.Lock()
		a.fault = func(string, *recordv1.RecordKey) error { <-hung.Done(); return refuse(codes.Unavailable, "STOPPING") }
		a.mu.Unlock()
		request := []byte("0123456789abcdef")
		answered := make(chan error, 1)
		go func() {
			_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1), Data: []byte("x"), RequestId: request})
			answered <- err
		}()
		for a.count("Put") == 0 {
			time.Sleep(time.Millisecond)
		}
		shareGroups(c, "b", 2, "a", "b", "c")
		select {
		case err := <-answered:
			t.Fatalf("answered too early: %v", err)
		default:
		}
		c.stops["a"]()
		began := time.Now()
		if err := <-answered; err != nil || c.shards["b"].count("Put") != 1 {
			t.Errorf("%v; %d calls went to b", err, c.shards["b"].count("Put"))
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the call left the shard after %v", took)
		}
	})
}

// Reads at a shard whose disk hangs wait without an error, while the shard handles everything else. When another shard
// leads their group, the waiting reads are aborted and retried at that shard.
func TestReadsAvoidShardWithHungDisk(t *testing.T) {
	meta := hash(1)
	meta.Copies = 3
	for name, read := range map[string]func(c *cluster) error{
		"Get": func(c *cluster) error {
			_, err := c.records.Get(c.ctx, &recordv1.GetRequest{Key: key(1)})
			return err
		},
		"BatchGet": func(c *cluster) error {
			stream, err := c.records.BatchGet(c.ctx, &recordv1.BatchGetRequest{Gets: []*recordv1.GetRequest{{Key: key(1)}}})
			if err != nil {
				return err
			}
			out, err := stream.Recv()
			if err == nil && out.GetResults()[0].GetStatus() != nil {
				err = status.FromProto(out.GetResults()[0].GetStatus()).Err()
			}
			return err
		},
		"Download": func(c *cluster) error {
			stream, err := c.records.Download(c.ctx, &recordv1.DownloadRequest{Key: key(1)})
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
		"Scan": func(c *cluster) error {
			stream, err := c.records.Scan(c.ctx, &recordv1.ScanRequest{})
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, meta, gateway.Config{}, "a", "b", "c")
				shareGroups(c, "a", 1, "a", "b", "c")
				c.shards["b"].put(key(1), nil, []byte("x"))
				answers, goOn := context.WithCancel(context.Background())
				defer goOn()
				a := c.shards["a"]
				a.mu.Lock()
				a.fault = func(string, *recordv1.RecordKey) error {
					<-answers.Done()
					return refuse(codes.Unavailable, "STOPPING")
				}
				a.mu.Unlock()
				answered := make(chan error, 1)
				go func() { answered <- read(c) }()
				for a.count(name) == 0 && c.ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				began := time.Now()
				shareGroups(c, "b", 2, "a", "b", "c")
				if err := <-answered; err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > soon {
					t.Errorf("the call left the shard after %v", took)
				}
				if at := c.shards["b"].count(name); at != 1 {
					t.Errorf("%d calls went to b", at)
				}
			})
		})
	}
}
