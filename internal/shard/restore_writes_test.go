package shard

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/finding"
)

// A restored group that waits for a majority of its copies can be read, and refuses each kind of write. A restart and
// another leader change nothing about that. Once the majority has joined, it accepts writes, also after a loss.
func TestRestoredGroupsRefuseWritesUntilTheyHaveCopies(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, smallBlobs)
		r.only("delta")
		r.registry.change(func(v *placement.View) {
			g := v.Groups["delta"]
			g.WritesFrom = 3
			v.Groups["delta"] = g
		})
		r.source.start()
		for _, name := range abc {
			r.begin(name, nil)
		}
		r.reported("delta", "a")
		refused := func(when, shard string) {
			t.Helper()
			r.eventually(when+": shard "+shard+" leads", func() bool { return r.registry.now().Groups["delta"].Leader == shard })
			r.shards[shard].refusesWrites(when, "delta")
		}
		refused("one copy", "a")
		r.kill("a")
		r.restart("a")
		refused("after a restart", "a")
		r.aimAll("b", "a")
		r.reported("delta", "a", "b")
		refused("two of three copies", "b")
		if g := r.registry.now().Groups["delta"]; g.WritesFrom != 3 {
			t.Errorf("etcd has %+v", g)
		}
		r.aimAll("b", "a", "c")
		r.reported("delta", abc...)
		r.same("delta")
		if g := r.registry.now().Groups["delta"]; g.WritesFrom != 0 {
			t.Errorf("etcd has %+v", g)
		}
		r.kill("b")
		r.call(func(f *fixture) error {
			_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 1 << 41, Group: "delta"}})
			return err
		})
	})
}

// refusesWrites checks that the leader of a group answers reads, and refuses each kind of write.
func (f *fixture) refusesWrites(when, group string) {
	f.t.Helper()
	key := &recordv1.RecordKey{Id: 1 << 40, Group: group}
	refused := func(err error) {
		f.t.Helper()
		want(f.t, err, codes.Unavailable, reason.GroupLoading)
		if retryAfter(err) <= 0 || !strings.Contains(err.Error(), "accepts writes") {
			f.t.Errorf("%s: %v", when, err)
		}
	}
	rows, err := f.admin.ListGroups(f.ctx(), &recordv1.ListGroupsRequest{Group: group})
	must(f.t, err)
	if words := rows.GetGroups()[0].GetMessage(); !strings.HasPrefix(words, finding.WritesAwait) {
		f.t.Errorf("%s: the row of the group says %q", when, words)
	}
	_, err = f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key})
	want(f.t, err, codes.NotFound, reason.RecordNotFound)
	_, err = f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key, Data: []byte("new")})
	refused(err)
	_, err = f.records.Delete(f.ctx(), &recordv1.DeleteRequest{Key: key})
	refused(err)
	upload, err := f.records.Upload(f.ctx())
	must(f.t, err)
	header := &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key}}
	_ = upload.Send(&recordv1.UploadRequest{Part: header})
	_, err = upload.CloseAndRecv()
	refused(err)
	batch, err := f.records.BatchPut(f.ctx())
	must(f.t, err)
	must(f.t, batch.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{{Key: key}}}))
	out, err := batch.Recv()
	must(f.t, err)
	if s := out.GetResults()[0].GetStatus(); codes.Code(s.GetCode()) != codes.Unavailable {
		f.t.Errorf("%s: a put of a batch: %v", when, s)
	}
	must(f.t, batch.CloseSend())
}
