package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/internal/storage/group"
)

var store = uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

// fake is a group whose log has entries of a fixed size.
type fake struct {
	named   Named
	applied uint64
	floor   uint64
	deletes uint64 // index up to which deletes may be missing
	ended   bool   // result of End
	endErr  error  // result of End
	ends    int    // number of calls to End
	bytes   int    // size of each entry

	barrier func(ctx context.Context) error      // replaces the barrier; if nil, the barrier is passed immediately
	read    func(r group.IndexRange) (err error) // if not nil, called before entries are read

	mu     sync.Mutex
	reads  int
	held   []uint64 // indexes that were passed to Archived
	begins []uint64 // indexes that were passed to Begins
}

func newFake(name string, applied uint64) *fake {
	return &fake{named: Named{Name: name, UUID: uuid.New()}, applied: applied, bytes: 100}
}

func (g *fake) Named() Named { return g.named }

func (g *fake) Barrier(ctx context.Context) error {
	if g.barrier == nil {
		return nil
	}
	return g.barrier(ctx)
}

func (g *fake) Applied() uint64 { return g.applied }

func (g *fake) Read(r group.IndexRange, maxBytes uint64) (out group.RangeAnswer, err error) {
	g.mu.Lock()
	g.reads++
	g.mu.Unlock()
	if g.read != nil {
		if err := g.read(r); err != nil {
			return out, err
		}
	}
	for at := r.First; at <= r.Last; at++ {
		if uint64(g.bytes) > maxBytes && len(out.Entries) > 0 {
			break
		}
		maxBytes -= min(maxBytes, uint64(g.bytes))
		out.Entries = append(out.Entries, &raftpb.Entry{Index: new(at), Data: make([]byte, g.bytes)})
		out.Through = at
	}
	return out, nil
}

func (g *fake) HistoryFloor() (uint64, bool) { return g.floor, g.floor > 0 }

func (g *fake) DeletesFloor() uint64 { return g.deletes }

func (g *fake) Archived(_ any, index uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = append(g.held, index)
}

func (g *fake) End(context.Context) (bool, error) {
	g.ends++
	return g.ended, g.endErr
}

func (g *fake) Begins(index uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.begins = append(g.begins, index)
}

// fakes are the groups of a shard.
type fakes struct {
	led     []*fake
	silent  map[Named]error
	deleted map[Named]bool
	asked   int // number of questions about deletions
	left    int // number of calls to Leave
}

func (f *fakes) Led() (led []Group) {
	for _, g := range f.led {
		led = append(led, g)
	}
	return led
}

func (f *fakes) All() (served []Group, unserved []Named) {
	return f.Led(), slices.Collect(maps.Keys(f.silent))
}

func (f *fakes) Silent() iter.Seq2[Named, error] { return maps.All(f.silent) }

func (f *fakes) Deleted(_ context.Context, g Named) bool {
	f.asked++
	return f.deleted[g]
}

func (f *fakes) Leave(any) { f.left++ }

// stream is the server's end of a Follow call.
type stream struct {
	archivev1.ArchiveService_FollowServer
	ctx  context.Context
	in   []*archivev1.FollowRequest
	out  []*archivev1.FollowResponse
	send func() // if not nil, called before a message is sent
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) SetHeader(metadata.MD) error { return nil }

func (s *stream) Recv() (*archivev1.FollowRequest, error) {
	if len(s.in) == 0 {
		return nil, io.EOF
	}
	next := s.in[0]
	s.in = s.in[1:]
	return next, nil
}

func (s *stream) Send(m *archivev1.FollowResponse) error {
	if s.send != nil {
		s.send()
	}
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	s.out = append(s.out, m)
	return nil
}

// of returns those messages in s.out that concern the given group.
func (s *stream) of(g Named) (out []*archivev1.FollowResponse) {
	for _, m := range s.out {
		if bytes.Equal(m.GetGroup(), g.UUID[:]) {
			out = append(out, m)
		}
	}
	return out
}

func header() *archivev1.Header { return &archivev1.Header{Store: store[:], ToShard: "a"} }

// positions returns the request that begins a round.
func positions(after map[*fake]uint64) *archivev1.FollowRequest {
	in := &archivev1.FollowRequest{Header: header()}
	for g, at := range after {
		in.Positions = append(in.Positions, &archivev1.Position{Group: g.named.UUID[:], After: at})
	}
	return in
}

// rounds calls Follow, and returns when the server has ended the call.
func (f *fakes) rounds(s *stream) error {
	server := New(Options{Shard: "a", Store: store, Groups: f, Holds: f, Stopping: func() bool { return false },
		IdleMax: time.Minute})
	return server.Follow(s)
}

func (f *fakes) round(t *testing.T, in ...*archivev1.FollowRequest) *stream {
	t.Helper()
	s := &stream{ctx: t.Context(), in: in}
	if err := f.rounds(s); err != nil {
		t.Fatal(err)
	}
	if n := len(s.out); n == 0 || !s.out[n-1].GetRoundEnds() {
		t.Fatalf("the round does not end: %v", s.out)
	}
	return s
}

// A write that is acknowledged while a round waits for the barrier may have an index above those that the round
// reports. The time that the round reports must therefore be earlier than the barrier.
func TestTheTimeOfARoundIsBeforeItsBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFake("g", 5)
		began := time.Now()
		g.barrier = func(context.Context) error {
			time.Sleep(time.Second) // another leader acknowledges index 6 meanwhile
			return nil
		}
		f := &fakes{led: []*fake{g}}
		news := f.round(t, positions(map[*fake]uint64{g: 2})).of(g.named)
		if len(news) != 1 || news[0].GetThrough() != 5 || len(news[0].GetEntries()) != 3 {
			t.Fatalf("the news are %v", news)
		}
		if at := time.Unix(0, news[0].GetReadAtUnixNs()); at.After(began) {
			t.Errorf("the round is said to be of %v, but a write acknowledged %v before that is not in it", at, at.Sub(began))
		}
	})
}

func TestALongPieceComesInMessages(t *testing.T) {
	g := newFake("g", 50)
	g.bytes, g.floor = 100<<10, 7
	g.read = func(r group.IndexRange) error {
		if r.First > 40 { // simulates a compaction that ignored the hold and has just dropped entries
			g.floor = 45
		}
		return nil
	}
	f := &fakes{led: []*fake{g}}
	news := f.round(t, positions(map[*fake]uint64{g: 3})).of(g.named)
	if len(news) != 5 {
		t.Fatalf("%d messages", len(news))
	}
	next := uint64(4)
	for i, m := range news {
		for _, encoded := range m.GetEntries() {
			var e raftpb.Entry
			if err := proto.Unmarshal(encoded, &e); err != nil || e.GetIndex() != next {
				t.Fatalf("index %d follows %d: %v", e.GetIndex(), next-1, err)
			}
			next++
		}
		last := i == len(news)-1
		if m.GetThrough() != next-1 || m.GetMore() == last || proto.Size(m) > entriesBytesMax+4096 {
			t.Errorf("message %d: through %d after index %d, more %v, %d bytes", i, m.GetThrough(), next-1, m.GetMore(),
				proto.Size(m))
		}
		if (m.GetReadAtUnixNs() != 0) != last || m.GetHistoryFloor() == 0 {
			t.Errorf("message %d has the time %d and the floor %d", i, m.GetReadAtUnixNs(), m.GetHistoryFloor())
		}
	}
	if last := news[len(news)-1]; next != 51 || last.GetHistoryFloor() != 45 || !last.GetFloorKnown() {
		t.Errorf("up to %d, with the floor %d: versions that were dropped before they were read are not told", next-1,
			last.GetHistoryFloor())
	}
	if !slices.Equal(g.held, []uint64{3}) {
		t.Errorf("the holds are %v", g.held)
	}
}

// Entries do not help a caller that is below the floor of deletes, even if a compaction raises this floor while they
// are sent. The entries that were sent before count. A caller at or above the floor continues.
func TestACallerBelowTheDeletesThatAreMissingCopiesAgain(t *testing.T) {
	g, at, below := newFake("g", 50), newFake("at", 9), newFake("below", 9)
	at.deletes, below.deletes = 4, 4
	g.bytes = 100 << 10
	g.read = func(r group.IndexRange) error {
		if r.First > 20 { // simulates a compaction that has just dropped a delete
			g.deletes = 45
		}
		return nil
	}
	s := (&fakes{led: []*fake{g, at, below}}).round(t, positions(map[*fake]uint64{g: 3, at: 4, below: 3}))
	news := s.of(g.named)
	last := news[len(news)-1]
	for i, m := range news[:len(news)-1] {
		if m.GetCopyAgain() || m.GetThrough() > 23 || !m.GetMore() {
			t.Errorf("message %d: %v", i, m)
		}
	}
	if len(news) != 3 || !last.GetCopyAgain() || last.GetThrough() > 0 || len(last.GetEntries()) > 0 ||
		last.GetReadAtUnixNs() != 0 || !strings.Contains(last.GetLeftOut(), "deletes above index 23") {
		t.Errorf("%d messages, the last one is %v", len(news), last)
	}
	if news := s.of(at.named); len(news) != 1 || news[0].GetCopyAgain() || news[0].GetThrough() != 9 {
		t.Errorf("at the floor: %v", news)
	}
	if news := s.of(below.named); len(news) != 1 || !news[0].GetCopyAgain() || !slices.Equal(below.held, []uint64{3}) {
		t.Errorf("below the floor: %v, held from %v", news, below.held)
	}
}

func TestWhatARoundSaysOfEachGroup(t *testing.T) {
	idle, unknown, stuck, ahead, damaged := newFake("idle", 9), newFake("unknown", 8), newFake("stuck", 9),
		newFake("ahead", 9), newFake("damaged", 9)
	stuck.barrier = func(context.Context) error { return errors.New("no majority") }
	damaged.read = func(group.IndexRange) error { return errors.New("bad bytes \xff") }
	loading := Named{"loading", uuid.New()}
	deleted, elsewhere := Named{"deleted", uuid.New()}, Named{"elsewhere", uuid.New()}
	f := &fakes{led: []*fake{idle, unknown, stuck, ahead, damaged},
		silent: map[Named]error{loading: errors.New("loading")}, deleted: map[Named]bool{deleted: true}}
	in := positions(map[*fake]uint64{idle: 9, stuck: 1, ahead: 10, damaged: 1})
	for _, g := range []Named{deleted, elsewhere} {
		in.Positions = append(in.Positions, &archivev1.Position{Group: g.UUID[:], After: 4, DeletedName: g.Name})
	}
	s := f.round(t, in)
	one := func(g Named) *archivev1.FollowResponse {
		news := s.of(g)
		if len(news) != 1 || news[0].GetName() != g.Name {
			t.Fatalf("the news of group %s are %v", g.Name, news)
		}
		return news[0]
	}
	if m := one(idle.named); m.GetThrough() != 9 || m.GetReadAtUnixNs() == 0 || len(m.GetEntries()) > 0 || idle.reads > 0 {
		t.Errorf("idle: %v, %d reads", m, idle.reads)
	}
	if m := one(unknown.named); !m.GetUnknown() || m.GetThrough() != 0 || !slices.Equal(unknown.begins, []uint64{8}) {
		t.Errorf("unknown: %v, begins %v", m, unknown.begins)
	}
	for g, why := range map[Named]string{stuck.named: "no majority", damaged.named: "bad bytes", loading: "loading",
		ahead.named: "archived up to index 10, but has only 9"} {
		if m := one(g); !strings.Contains(m.GetLeftOut(), why) || m.GetReadAtUnixNs() != 0 || m.GetThrough() != 0 {
			t.Errorf("%s: %v", g.Name, m)
		}
	}
	if len(stuck.held)+len(ahead.held) > 0 {
		t.Errorf("holds that no group may have: %v, %v", stuck.held, ahead.held)
	}
	if m := one(deleted); !m.GetGone() {
		t.Errorf("deleted: %v", m)
	}
	if news := s.of(elsewhere); len(news) > 0 || f.asked != 2 {
		t.Errorf("a group on another shard: %v, after %d questions", news, f.asked)
	}
	if f.left != 1 {
		t.Errorf("the call was forgotten %d times", f.left)
	}
}

func TestWhatARoundRefuses(t *testing.T) {
	id := uuid.New()
	other := uuid.New()
	with := func(ps ...*archivev1.Position) *archivev1.FollowRequest {
		return &archivev1.FollowRequest{Header: header(), Positions: ps}
	}
	many := make([]*archivev1.Position, positionsPerMessage+1)
	to := func(store uuid.UUID, shard string) *archivev1.FollowRequest {
		return &archivev1.FollowRequest{Header: &archivev1.Header{Store: store[:], ToShard: shard}}
	}
	for name, c := range map[string]struct {
		in   *archivev1.FollowRequest
		code codes.Code
	}{
		"no header":      {&archivev1.FollowRequest{}, codes.InvalidArgument},
		"another store":  {to(other, "a"), codes.FailedPrecondition},
		"another shard":  {to(store, "b"), codes.FailedPrecondition},
		"no group":       {with(&archivev1.Position{}), codes.InvalidArgument},
		"a group twice":  {with(&archivev1.Position{Group: id[:]}, &archivev1.Position{Group: id[:]}), codes.InvalidArgument},
		"an odd name":    {with(&archivev1.Position{Group: id[:], DeletedName: "a/b"}), codes.InvalidArgument},
		"an odd index":   {with(&archivev1.Position{Group: id[:], After: 1 << 63}), codes.InvalidArgument},
		"many positions": {with(many...), codes.InvalidArgument},
	} {
		f := &fakes{led: []*fake{newFake("g", 3)}}
		s := &stream{ctx: t.Context(), in: []*archivev1.FollowRequest{c.in}}
		if err := f.rounds(s); status.Code(err) != c.code || len(s.out) > 0 || f.left != 1 {
			t.Errorf("%s: %v, and %v was sent", name, err, s.out)
		}
	}
}

// The caller may send the positions of a round in several messages. A round uses only the positions that were sent
// for it.
func TestPositionsComeInMessages(t *testing.T) {
	a, b := newFake("a", 3), newFake("b", 4)
	f := &fakes{led: []*fake{a, b}}
	first, second := positions(map[*fake]uint64{a: 1}), positions(map[*fake]uint64{b: 2})
	first.More, second.Header = true, nil
	first.Header.ToShard = "" // the caller knows the shard's address but not its name
	s := f.round(t, first, second, &archivev1.FollowRequest{})
	if got := s.of(a.named); len(got) != 2 || got[0].GetThrough() != 3 || !got[1].GetUnknown() {
		t.Errorf("group a: %v", got)
	}
	if got := s.of(b.named); len(got) != 2 || got[0].GetThrough() != 4 || !got[1].GetUnknown() {
		t.Errorf("group b: %v", got)
	}
}

// A shard keeps the last time up to which the store is archived, also while the archiver does not know it.
func TestAShardIsToldHowFarTheArchiveIs(t *testing.T) {
	f := &fakes{}
	server := New(Options{Shard: "a", Store: store, Groups: f, Holds: f, Stopping: func() bool { return false }})
	for _, c := range []struct {
		told, want int64
		known      bool
	}{{0, 0, false}, {-1, 0, false}, {70, 70, true}, {0, 70, true}, {90, 90, true}, {80, 80, true}} {
		in := positions(nil)
		in.ArchivedThroughUnixNs = c.told
		if err := server.Follow(&stream{ctx: t.Context(), in: []*archivev1.FollowRequest{in}}); err != nil {
			t.Fatal(err)
		}
		if got, known := server.ArchivedThrough(); got != c.want || known != c.known {
			t.Errorf("told %d: %d, %v", c.told, got, known)
		}
	}
}

// Groups with slow barriers are waited for concurrently, but never more than barriersMax of them at a time.
func TestBarriersArePassedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		waiting, most := 0, 0
		f := &fakes{}
		for n := range 4 * barriersMax {
			g := newFake(fmt.Sprint(n), 1)
			g.barrier = func(context.Context) error {
				mu.Lock()
				waiting++
				most = max(most, waiting)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				waiting--
				mu.Unlock()
				return nil
			}
			f.led = append(f.led, g)
		}
		began := time.Now()
		f.round(t, &archivev1.FollowRequest{Header: header()})
		if took := time.Since(began); took != 4*time.Second || most != barriersMax {
			t.Errorf("it took %v, with %d groups at a time", took, most)
		}
	})
}

// As long as a caller takes no messages, nothing is read from the log for it. Its call ends when its context is
// canceled.
func TestASlowCallerHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &fakes{}
		for n := range 2 * barriersMax {
			g := newFake(fmt.Sprint(n), 50)
			g.bytes = 1 << 20
			f.led = append(f.led, g)
		}
		s := &stream{ctx: ctx, in: []*archivev1.FollowRequest{positions(func() map[*fake]uint64 {
			after := map[*fake]uint64{}
			for _, g := range f.led {
				after[g] = 1
			}
			return after
		}())}}
		s.send = func() { <-ctx.Done() }
		ended := make(chan error, 1)
		go func() { ended <- f.rounds(s) }()
		synctest.Wait()
		reads := 0
		for _, g := range f.led {
			reads += g.reads
		}
		if reads != 1 {
			t.Errorf("%d messages were read while none was taken", reads)
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("the call goes on without its caller")
		}
	})
}

// EndHistory counts the groups whose holds have ended and those that wait, and refuses while an archiver follows.
func TestTheEndOfTheHolds(t *testing.T) {
	at := func(name string, ended bool, err error) *fake {
		return &fake{named: Named{Name: name, UUID: uuid.New()}, ended: ended, endErr: err}
	}
	groups := &fakes{led: []*fake{at("a", true, nil), at("b", false, nil), at("c", false, errors.New("its leader holds"))},
		silent: map[Named]error{{Name: "d"}: nil}}
	s := New(Options{Shard: "s0", Store: store, Groups: groups, Holds: groups})
	in := &archivev1.EndHistoryRequest{Header: &archivev1.Header{Store: store[:]}}
	out, err := s.EndHistory(t.Context(), in)
	if err != nil || out.GetEnded() != 1 || out.GetWaiting() != 2 || !strings.Contains(out.GetReason(), "group d") {
		t.Errorf("%v, %v", out, err)
	}
	groups.led[1].endErr = fmt.Errorf("%w: stop it", ErrFollowed)
	if _, err := s.EndHistory(t.Context(), in); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an archiver follows a group: %v", err)
	}
	in.Header.Store = []byte("another store")
	if _, err := s.EndHistory(t.Context(), in); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another store: %v", err)
	}
}

// An archiver has an open call, but has reported no position of any group: its first copies are in progress, or other
// shards led the groups until now. EndHistory refuses before it ends a hold.
func TestNoHoldEndsWhileAnArchiverFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFake("0", 5)
		groups := &fakes{led: []*fake{g}}
		server := New(Options{Shard: "a", Store: store, Groups: groups, Holds: groups,
			Stopping: func() bool { return false }, IdleMax: time.Minute})
		sent := make(chan struct{})
		s := &stream{ctx: t.Context(), in: []*archivev1.FollowRequest{positions(nil)}, send: func() { <-sent }}
		ended := make(chan error, 1)
		go func() { ended <- server.Follow(s) }()
		synctest.Wait()
		in := &archivev1.EndHistoryRequest{Header: header()}
		if out, err := server.EndHistory(t.Context(), in); status.Code(err) != codes.FailedPrecondition || g.ends != 0 {
			t.Errorf("while an archiver follows: %v, %v; %d holds were asked to end", out, err, g.ends)
		}
		close(sent)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if _, err := server.EndHistory(t.Context(), in); err != nil || g.ends != 1 {
			t.Errorf("after the archiver's call: %v; %d holds were asked to end", err, g.ends)
		}
	})
}
