package shard

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/archive"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// askingArchiver follows all shards of a cluster, and keeps their answers in memory.
type askingArchiver struct {
	*cluster
	calls  map[string]*followed
	groups map[uuid.UUID]*archivedGroup
}

// followed is a call to Follow. It ends when its shard restarts.
type followed struct {
	conn   *grpc.ClientConn
	stream archivev1.ArchiveService_FollowClient
}

// archivedGroup is the part of the archive that belongs to one group.
type archivedGroup struct {
	name    string
	through uint64
	entries []byte // contents of all entries, in order
	readAt  time.Time
	floor   uint64
	floored bool   // whether floor is known
	gone    bool   // whether the last round reported that the group was deleted
	why     string // why the last round contained no entries of the group
	again   bool   // whether the last round reported that the group must be copied again
	news    int    // number of messages about the group in the last round
}

func newArchiver(c *cluster) *askingArchiver {
	return &askingArchiver{cluster: c, calls: map[string]*followed{}, groups: map[uuid.UUID]*archivedGroup{}}
}

func (c *cluster) archiveHeader(shard string) *archivev1.Header {
	id := c.registry.now().Meta.StoreUUID
	return &archivev1.Header{Store: id[:], ToShard: shard}
}

// round makes one round, in which it reads from the given shards, or from all shards if none are given. For each
// group about which the previous round brought no message, it asks whether the group was deleted.
func (a *askingArchiver) round(shards ...string) {
	in := &archivev1.FollowRequest{}
	for id, g := range a.groups {
		p := &archivev1.Position{Group: id[:], After: g.through}
		if g.news == 0 {
			p.DeletedName = g.name
		}
		in.Positions = append(in.Positions, p)
		g.why, g.news = "", 0
	}
	if len(shards) == 0 {
		for name := range a.shards {
			shards = append(shards, name)
		}
	}
	slices.Sort(shards)
	for _, name := range shards {
		if err := a.ask(name, proto.CloneOf(in)); err != nil {
			a.t.Logf("a round at shard %s has ended early: %v", name, err)
			delete(a.calls, name)
		}
	}
}

func (a *askingArchiver) ask(name string, in *archivev1.FollowRequest) error {
	f := a.shards[name]
	call := a.calls[name]
	if call == nil || call.conn != f.conn {
		stream, err := archivev1.NewArchiveServiceClient(f.conn).Follow(a.t.Context())
		if err != nil {
			return err
		}
		call = &followed{f.conn, stream}
		a.calls[name] = call
		in.Header = a.archiveHeader(name)
	}
	if err := call.stream.Send(in); err != nil {
		_, err = call.stream.Recv()
		return err
	}
	for {
		m, err := call.stream.Recv()
		if err != nil || m.GetRoundEnds() {
			return err
		}
		a.take(m)
	}
}

// take processes a message about a group. The entries must arrive in order, and no shard may send an entry twice.
func (a *askingArchiver) take(m *archivev1.FollowResponse) {
	a.t.Helper()
	id := uuid.UUID(m.GetGroup())
	g := a.groups[id]
	if m.GetUnknown() {
		// In these tests, groups are never compacted before they are archived. The archiver therefore gets all of their
		// data as entries.
		if g == nil {
			a.groups[id] = &archivedGroup{name: m.GetName(), news: 1}
		}
		return
	}
	if g == nil || m.GetName() != g.name {
		a.t.Fatalf("news of group %s (%s), which was not asked for", m.GetName(), id)
	}
	g.news++
	g.why, g.gone, g.again = m.GetLeftOut(), m.GetGone(), m.GetCopyAgain()
	last := uint64(0)
	for _, encoded := range m.GetEntries() {
		var e raftpb.Entry
		if err := proto.Unmarshal(encoded, &e); err != nil {
			a.t.Fatal(err)
		}
		if e.GetIndex() <= last || e.GetIndex() > m.GetThrough() {
			a.t.Fatalf("group %s: index %d follows %d, through %d", g.name, e.GetIndex(), last, m.GetThrough())
		}
		if last = e.GetIndex(); last > g.through {
			g.entries = append(g.entries, e.GetData()...)
		}
	}
	g.through = max(g.through, m.GetThrough())
	if m.GetReadAtUnixNs() != 0 {
		g.readAt, g.floor, g.floored = time.Unix(0, m.GetReadAtUnixNs()), m.GetHistoryFloor(), m.GetFloorKnown()
	}
}

// of returns the archive of the newest group that has the name.
func (a *askingArchiver) of(name string) *archivedGroup {
	a.t.Helper()
	g := a.groups[a.registry.now().Groups[name].UUID]
	if g == nil {
		a.t.Fatalf("group %s is not archived", name)
	}
	return g
}

// acknowledged is a put, with the time at which it was acknowledged.
type acknowledged struct {
	id   int64
	data []byte
	at   time.Time
}

// writer puts records with data that is different each time.
type writer struct {
	*cluster
	next int64
	acks []acknowledged
}

func (w *writer) puts(n, size int) {
	w.t.Helper()
	for range n {
		w.next++
		one := acknowledged{id: w.next % 10, data: data(w.next<<8, size)}
		w.call(func(f *fixture) error {
			_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(one.id), Data: one.data})
			return err
		})
		one.at = time.Now()
		w.acks = append(w.acks, one)
	}
}

// missing compares the puts with the archive. For each group, the archive must contain all puts that were
// acknowledged before the time up to which the group is archived. missing returns how many of these puts the archive
// lacks, and how many puts it contains.
func (w *writer) missing(a *askingArchiver) (missing, there int) {
	w.t.Helper()
	for _, one := range w.acks {
		g := a.of(placement.GroupName(w.registry.now().Meta.Routing.GroupOf(one.id)))
		switch {
		case bytes.Contains(g.entries, one.data):
			there++
		case one.at.Before(g.readAt):
			missing++
			w.t.Errorf("record %d, acknowledged %v before the time of group %s, is not in the archive", one.id,
				g.readAt.Sub(one.at), g.name)
		}
	}
	return missing, there
}

// While leaders are killed and groups move, the archiver must get every write that was acknowledged, and no shard may
// report a group as deleted.
func TestAnArchiverMissesNothingThatIsAcknowledged(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, hash4, abc, "d")
		c.settled(abc...)
		a, w := newArchiver(c), &writer{cluster: c}
		w.puts(10, 100)
		a.round() // From this round, the archiver learns which groups exist
		if len(a.groups) != hash4.Groups {
			t.Fatalf("%d groups are heard of", len(a.groups))
		}
		for step, change := range []func(){
			func() {},
			func() { c.kill("a") },
			func() { c.restart("a") },
			func() { c.aim("b", "c", "d") },
			func() { c.settled("b", "c", "d") },
			func() { c.kill("b") },
			func() { c.restart("b") },
			func() { c.aim(abc...); c.settled(abc...) },
		} {
			change()
			for range 3 {
				ended := make(chan struct{})
				go func() { defer close(ended); a.round() }()
				w.puts(10, 3000)
				<-ended
				if missing, _ := w.missing(a); missing > 0 {
					t.Fatalf("step %d: %d writes are missing", step, missing)
				}
			}
		}
		c.eventually("everything is archived", func() bool {
			time.Sleep(time.Second)
			a.round()
			_, there := w.missing(a)
			return there == len(w.acks)
		})
		for _, g := range a.groups {
			if g.gone {
				t.Errorf("group %s, which only moved, is said to be gone", g.name)
			}
		}
	})
}

// namedCluster creates a cluster with groups that have the given names. Each group has a single copy, on shard a.
func namedCluster(t *bubble, names ...string) *cluster {
	c := &cluster{t: t, registry: newRegistry(named, "a", names...), shards: map[string]*fixture{},
		stopped: map[string]*fixture{}}
	c.add("a", nil)
	c.add("d", nil)
	c.settled("a")
	return c
}

func TestOnlyADeletedGroupIsGone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := namedCluster(t, "g", "moves")
		a := newArchiver(c)
		a.round()
		a.round()
		first, moves := a.of("g"), a.of("moves")
		if first.through == 0 || moves.through == 0 {
			t.Fatalf("nothing is archived: %+v, %+v", first, moves)
		}
		c.registry.change(func(v *placement.View) {
			v.Targets["moves"] = placement.Target{Group: "moves", Shards: []string{"d"}, Revision: int64(v.Epoch)}
		})
		c.eventually("it has moved", func() bool {
			return slices.Equal(c.membersOn("moves"), []string{"d"}) && len(trashOf(t, c.shards["a"])) == 1
		})
		c.registry.change(func(*placement.View) {}) // now the shard gets a view that lacks the group
		time.Sleep(time.Second)
		for range 3 {
			if a.round("a"); moves.gone || moves.news > 0 {
				t.Fatalf("after the move, shard a says %+v", moves)
			}
		}
		if _, err := c.shards["a"].admin.DeleteGroup(t.Context(), &recordv1.DeleteGroupRequest{Group: "g"}); err != nil {
			t.Fatal(err)
		}
		c.registry.setDown(true)
		time.Sleep(2 * lookupKeep)
		for range 3 { // etcd does not respond during these rounds
			if a.round("d"); first.gone {
				t.Fatal("a group is said to be gone by a shard that cannot know")
			}
		}
		c.registry.setDown(false)
		c.eventually("the deletion is told", func() bool {
			time.Sleep(time.Second)
			a.round()
			return first.gone
		})
		// Another group gets the name of a deleted one. The two are different groups, and the first one remains deleted.
		c.registry.change(func(v *placement.View) {
			g := placement.NewGroup(named, "g", 0)
			v.Groups["g"], v.Deleted = g, map[string]uuid.UUID{}
			v.Targets["g"] = placement.Target{Group: "g", Shards: []string{"a"}, Revision: int64(v.Epoch)}
		})
		c.settledGroup("g", "a")
		first.gone, first.news = false, 0
		c.eventually("both are told apart", func() bool {
			time.Sleep(time.Second)
			a.round()
			next := a.groups[c.registry.now().Groups["g"].UUID]
			return first.gone && next != nil && next.through > 0 && !next.gone
		})
		if moves.gone {
			t.Error("the group that has moved is gone")
		}
	})
}

// settledGroup waits until the members of a group are on exactly the given shards.
func (c *cluster) settledGroup(name string, shards ...string) {
	c.t.Helper()
	c.eventually("the group is there", func() bool { return slices.Equal(c.membersOn(name), shards) })
}

// If a group has no majority, a round leaves it out. The other groups must not be affected.
func TestAGroupWithoutItsMajorityIsLeftOut(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, oneGroup, abc)
		c.settled(abc...)
		a := newArchiver(c)
		a.round()
		a.round()
		g := a.of("0")
		leader, at := c.leaderOf("0"), g.readAt
		for _, name := range abc {
			if name != leader {
				c.kill(name)
			}
		}
		time.Sleep(time.Second) // by then, the leader's lease has expired
		if a.round(); g.why == "" || !g.readAt.Equal(at) {
			t.Errorf("without a majority, the round says %+v", g)
		}
		time.Sleep(time.Minute) // by then, the leader has stepped down
		if a.round(); g.why == "" {
			t.Errorf("without a leader, the round says %+v", g)
		}
		for name := range c.stopped {
			c.restart(name)
		}
		c.eventually("the group is back", func() bool {
			time.Sleep(time.Second)
			a.round()
			return g.readAt.After(at)
		})
	})
}

// unreadArchive returns a client of ArchiveService. If the caller does not read from one of the client's streams, the
// stream accepts only a small amount of data.
func (f *fixture) unreadArchive() archivev1.ArchiveServiceClient {
	f.t.Helper()
	conn, err := connect(&f.cfg, f.shard.Addr(), grpc.WithStaticStreamWindowSize(1<<16),
		grpc.WithStaticConnWindowSize(64<<20), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(message.Codec{})))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return archivev1.NewArchiveServiceClient(conn)
}

// If an archiver stops reading, neither another archiver nor writes may be disturbed, and the archiver's call must
// end.
func TestAnArchiverThatDoesNotReadHoldsOnlyItself(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := &cluster{t: t, registry: newRegistry(oneGroup, "a"), shards: map[string]*fixture{}}
		f := c.add("a", func(cfg *Config) { cfg.sendTimeout = 30 * time.Second })
		c.settled("a")
		w := &writer{cluster: c}
		w.puts(20, 500_000)
		id := c.registry.now().Groups["0"].UUID
		stalled, err := f.unreadArchive().Follow(f.ctx())
		if err != nil {
			t.Fatal(err)
		}
		first := &archivev1.FollowRequest{Header: c.archiveHeader("a"), Positions: []*archivev1.Position{{Group: id[:]}}}
		if err := stalled.Send(first); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if held := f.shard.calls.AnswerBytes(); held == 0 || held > 16<<20 {
			t.Errorf("%d bytes are counted for the call", held)
		}
		a := newArchiver(c)
		a.round()
		a.round()
		if missing, there := w.missing(a); missing > 0 || there != len(w.acks) {
			t.Errorf("beside a call that is not read, another one has %d of %d writes", there, len(w.acks))
		}
		w.puts(1, 100)
		// As long as the stalled call is open, its position counts. Therefore entries are held for both archives.
		if at, on := f.shard.compactor.History.Of(t.Context(), f.served(0), c.registry.now().Groups["0"]); !on || at != 0 {
			t.Errorf("with two archivers, one of them at 0, the hold is %d, %v", at, on)
		}
		time.Sleep(time.Minute)
		for err == nil {
			_, err = stalled.Recv()
		}
		want(t, err, codes.Unavailable, reason.SlowReader)
		synctest.Wait()
		if held := f.shard.calls.AnswerBytes(); held != 0 {
			t.Errorf("%d bytes are still counted for the call that has ended", held)
		}
		a.round()
		if at, on := f.shard.compactor.History.Of(t.Context(), f.served(0), c.registry.now().Groups["0"]); !on || at == 0 {
			t.Errorf("after the call has ended, the hold is %d, %v", at, on)
		}
	})
}

// fetchGroup starts to fetch a group, and returns the group's manifest.
func (f *fixture) fetchGroup(header *archivev1.Header, id uuid.UUID) (archivev1.ArchiveService_FetchGroupClient,
	*format.Manifest, error) {
	f.t.Helper()
	stream, err := archivev1.NewArchiveServiceClient(f.conn).FetchGroup(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	_ = stream.Send(&archivev1.FetchGroupRequest{Part: &archivev1.FetchGroupRequest_Start{
		// If Send fails, Recv returns the error.
		Start: &archivev1.FetchGroupStart{Header: header, Group: id[:]}}})
	m, err := stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	manifest, _, err := format.DecodeManifest(m.GetDescription().GetManifest())
	if err != nil || m.GetDescription().GetMore() || m.GetDescription().GetTotalBytes() == 0 {
		f.t.Fatalf("the description is %v: %v", m.GetDescription(), err)
	}
	return stream, manifest, nil
}

func TestAnArchiverFetchesAGroupAndItsBlobs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := &cluster{t: t, registry: newRegistry(oneGroup, "a"), shards: map[string]*fixture{}}
		f := c.add("a", nil)
		c.settled("a")
		large := data(7, 3<<20)
		c.upload(7, large)
		w := &writer{cluster: c}
		w.puts(40, 200_000)
		id, header := c.registry.now().Groups["0"].UUID, c.archiveHeader("a")

		stream, manifest, err := f.fetchGroup(header, id)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.fetchGroup(header, id); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a second group at the same time: %v", err)
		}
		if n := f.shard.peers.hub.Fetched().ExportsUnderWay.Load(); n != 0 {
			t.Errorf("%d exports count for moves", n)
		}
		var files []byte
		for _, segment := range manifest.Segments {
			if err := stream.Send(&archivev1.FetchGroupRequest{Part: &archivev1.FetchGroupRequest_Wanted{
				Wanted: &peerv1.FetchGroupWanted{Files: []*peerv1.FileRange{{Name: format.SegmentName(segment.Number)}}},
			}}); err != nil {
				t.Fatal(err)
			}
			for last := false; !last; {
				m, err := stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				files, last = append(files, m.GetChunk().GetData()...), m.GetChunk().GetLast()
			}
		}
		for _, one := range w.acks {
			if !bytes.Contains(files, one.data) {
				t.Errorf("record %d is in no segment", one.id)
			}
		}
		// As long as the call is open, the group's files are pinned. Therefore the call is aborted if its caller requests
		// nothing for a long time.
		time.Sleep(2 * archive.IdleMax)
		over := time.Now()
		if _, err := stream.Recv(); status.Code(err) != codes.DeadlineExceeded || time.Since(over) > 0 {
			t.Errorf("a call that wants nothing has ended %v later with: %v", time.Since(over), err)
		}
		synctest.Wait()
		again, _, err := f.fetchGroup(header, id)
		if err != nil {
			t.Errorf("the place of the call is not free: %v", err)
		} else if err := again.CloseSend(); err != nil {
			t.Error(err)
		}

		got, err := f.fetchBlob(&archivev1.FetchBlobRequest{Header: header, Group: id[:], Ref: blobRefOf(t, f, "0"),
			OffsetBytes: 1 << 20})
		if err != nil || !bytes.Contains(got, large[2<<20:]) {
			t.Errorf("%d bytes of the blob: %v", len(got), err)
		}
		other := uuid.New()
		for name, in := range map[string]*archivev1.FetchBlobRequest{
			"another store": {Header: &archivev1.Header{Store: other[:], ToShard: "a"}, Group: id[:]},
			"another shard": {Header: &archivev1.Header{Store: header.GetStore(), ToShard: "b"}, Group: id[:]},
		} {
			if _, err := f.fetchBlob(in); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("a blob of %s: %v", name, err)
			}
			if _, _, err := f.fetchGroup(in.GetHeader(), id); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("a group of %s: %v", name, err)
			}
		}
	})
}

func (f *fixture) fetchBlob(in *archivev1.FetchBlobRequest) (got []byte, err error) {
	f.t.Helper()
	stream, err := archivev1.NewArchiveServiceClient(f.conn).FetchBlob(f.ctx(), in)
	if err != nil {
		return nil, err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return nil, err
		}
		got = append(got, m.GetChunk().GetData()...)
	}
}

// blobRefOf returns the reference to the only blob of a group, in encoded form.
func blobRefOf(t *bubble, f *fixture, name string) []byte {
	t.Helper()
	log := f.shard.replicas.Routes().ByName[name].Served().Log()
	have, err := log.ReadRange(group.IndexRange{First: 1, Last: log.AppliedIndex()}, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range have.Entries {
		p, err := format.DecodePayload(e)
		if err == nil && p.Kind == format.KindPut && p.Codec == format.CodecBlob {
			return p.Data
		}
	}
	t.Fatal("there is no blob")
	return nil
}
