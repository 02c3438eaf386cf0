package etcd_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/internal/test/memetcdtest"
)

// inMemory runs a test in virtual time, with an in-memory etcd.
func inMemory(t *testing.T, run func(e *underTest, server *memetcdtest.Server)) {
	synctest.Test(t, func(t *testing.T) {
		server := memetcdtest.New(t)
		run(&underTest{T: t, ctx: t.Context(), client: server.Client(t), prefix: "/"}, server)
	})
}

// If the stream of a watch breaks, the watch resumes with the changes that it has missed, and delivers each change
// exactly once.
func TestBrokenWatchesGoOn(t *testing.T) {
	inMemory(t, func(e *underTest, server *memetcdtest.Server) {
		watched := e.watch("", clientv3.WithPrefix())
		base := e.put("a", "0").Header.Revision
		is(e, "before", e.take(watched, 1, base), "+a=0@0")
		server.BreakWatches()
		e.put("a", "1")
		is(e, "the next", e.take(watched, 1, base), "+a=1@1")
		for range 3 {
			server.BreakWatches()
			e.put("b", "")
			server.BreakWatches()
			e.put("b", "")
			is(e, "and the next", strings.Count(e.take(watched, 2, base), "+b="), 2)
		}
		server.Away()
		time.Sleep(time.Hour)
		server.Back()
		time.Sleep(time.Minute)
		at := e.put("c", "1").Header.Revision
		is(e, "after an outage", e.take(watched, 1, at), "+c=1@0")
	})
}

// If a watch requests progress notifications and nothing changes for a minute, it receives etcd's current revision.
// From that revision it can resume after a compaction. A watch that does not request these notifications fails
// instead.
func TestProgressOutlivesCompaction(t *testing.T) {
	for asks, want := range map[bool]error{true: nil, false: rpctypes.ErrCompacted} {
		inMemory(t, func(e *underTest, server *memetcdtest.Server) {
			options := []clientv3.OpOption{}
			if asks {
				options = append(options, clientv3.WithProgressNotify())
			}
			base := e.put("a", "0").Header.Revision
			watched := e.watch("a", append(options, clientv3.WithRev(base+1))...)
			for range 3 {
				e.put("other", "")
			}
			if asks {
				if progress := <-watched; !progress.IsProgressNotify() || progress.Header.Revision != base+3 {
					e.Errorf("progress: %+v", progress)
				}
			}
			server.Compact()
			server.BreakWatches()
			synctest.Wait()
			time.Sleep(time.Second) // the client pauses for a while before it resumes the watch
			e.put("a", "1")
			change := <-watched
			e.isError("the watch", change.Err(), want)
			is(e, "it was told", len(change.Events) == 1, want == nil)
		})
	}
}

func TestLeasesOutliveAnEtcdThatIsAway(t *testing.T) {
	inMemory(t, func(e *underTest, server *memetcdtest.Server) {
		id := e.grant(6)
		e.put("a", "1", clientv3.WithLease(id))
		server.Away()
		time.Sleep(time.Hour)
		server.Back()
		time.Sleep(5 * time.Second)
		is(e, "within its time", e.get("a").Count, 1)
		time.Sleep(2 * time.Second)
		is(e, "after its time", e.get("a").Count, 0)
		is(e, "the lease", e.leased(id), "gone")
	})
}

func TestASlowEtcdTimesOut(t *testing.T) {
	inMemory(t, func(e *underTest, server *memetcdtest.Server) {
		server.Slow(3 * time.Second)
		began := time.Now()
		e.put("a", "1")
		is(e, "a slow write", time.Since(began), 3*time.Second)
		brief, cancel := context.WithTimeout(e.ctx, time.Second)
		defer cancel()
		_, err := e.client.Put(brief, "/a", "2")
		e.isError("an impatient write", err, context.DeadlineExceeded)
		server.Slow(time.Minute)
		_, err = e.client.Put(e.ctx, "/a", "3")
		e.isError("a write that etcd gives up", err, rpctypes.ErrTimeout)
		server.Slow(0)
		is(e, "what was done", e.found(e.get("a")), "a=3")
	})
}

func TestAnAnswerCanBeLost(t *testing.T) {
	inMemory(t, func(e *underTest, server *memetcdtest.Server) {
		server.Intercept(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
			error) {
			if _, err := handler(ctx, request); err != nil {
				return nil, err
			}
			return nil, rpctypes.ErrGRPCTimeout
		})
		_, err := e.client.Put(e.ctx, "/a", "1")
		e.isError("the write", err, rpctypes.ErrTimeout)
		server.Intercept(nil)
		is(e, "what was done", e.found(e.get("a")), "a=1")
	})
}

func TestAWipedEtcdIsAnother(t *testing.T) {
	inMemory(t, func(e *underTest, server *memetcdtest.Server) {
		id := e.grant(60)
		e.put("a", "1", clientv3.WithLease(id))
		before := e.get("a").Header
		backup := server.Backup()
		server.Wipe()
		after := e.get("", clientv3.WithPrefix())
		is(e, "keys", after.Count, 0)
		is(e, "the revision", after.Header.Revision, 1)
		is(e, "another cluster", after.Header.ClusterId != before.ClusterId, true)
		is(e, "the lease", e.leased(id), "gone")
		e.put("a", "2")
		for range 2 { // the backup is restored twice, because a restore must leave it unchanged
			server.Restore(backup)
			is(e, "the key", e.found(e.get("a")), "a=1")
			is(e, "the cluster", e.get("a").Header.ClusterId, before.ClusterId)
			is(e, "the lease has its key", e.leased(id), "a")
			e.put("a", "3")
		}
	})
}
