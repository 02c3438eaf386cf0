package shard

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// lone creates a shard named "a" on an in-memory volume. Its first load is marked as begun, but none of its goroutines
// has been started.
func lone(t testing.TB) *Shard {
	t.Helper()
	s := unbegun(t)
	s.replicas.BeginLoad()
	return s
}

// unbegun creates the same shard as lone, except that the first load has not begun yet.
func unbegun(t testing.TB) *Shard {
	t.Helper()
	cfg := Config{Name: "a", Dir: "v", FS: vfstest.NewMem(), SegmentBytes: 64 << 10}
	cfg.setDefaults()
	s := newShard(cfg)
	s.volume.Store = uuid.New()
	var err error
	s.volume.Volume, err = volume.Open(volume.Options{FS: cfg.FS, Dir: cfg.Dir, Store: s.volume.Store, Shard: cfg.Name,
		Create: true, Logger: s.logger})
	must(t, err)
	s.committer, s.peers.hub = replica.NewCommitter(), s.newHub()
	t.Cleanup(func() {
		s.peers.hub.Close()
		s.committer.Close()
		if err := s.volume.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// does describes in words what a shard is going to do about one group.
func does(s *Shard, todo replicas.Work, id uuid.UUID) string {
	var words []string
	for _, one := range []struct {
		word string
		n    int
	}{
		{"create", len(todo.Create)}, {"announce", len(todo.Announce)}, {"make-folder", len(todo.MakeFolder)},
		{"confess", len(todo.Missing)},
		{"claim", len(todo.Present)}, {"load", len(todo.Load)}, {"join", len(todo.Join)}, {"reinstall", len(todo.Reinstall)},
		{"close", len(todo.Close)}, {"trash", len(todo.Trash)},
	} {
		if one.n > 0 {
			words = append(words, one.word)
		}
	}
	if there := s.replicas.Find(id); len(todo.Trash) > 0 && there.State().Plan != nil {
		words = append(words, "(a load may still trust what was read of its folder)")
	}
	if todo.Later {
		words = append(words, "later")
	}
	if there := s.replicas.Find(id); there != nil && there.State().Phase == member.Lost {
		words = append(words, "lost")
	} else if there != nil && there.State().Standing.Stray() && len(todo.Trash) == 0 {
		words = append(words, "stray")
	}
	return strings.Join(words, " ")
}

// TestWhatAShardDoesAboutAGroup compares the actions of a shard with those in a table. They depend on what the
// shard's volume contains and on what etcd says.
func TestWhatAShardDoesAboutAGroup(t *testing.T) {
	for _, c := range decideCases {
		for held, want := range map[string]string{"": c.want, "etcd was set back": c.held} {
			if got := c.run(t, held); got != want {
				t.Errorf("%s%s: %q, want %q", c.name, map[bool]string{true: ", while etcd was set back"}[held != ""], got, want)
			}
		}
	}
}

// holding adds a replica with the given state to a shard.
func holding(s *Shard, id uuid.UUID, state replicas.State) *replicas.Replica {
	g := s.replicas.Add(id, state)
	if state.Serves || state.Fetching {
		g.Serve(nil, nil, state.RaftID, nil)
	}
	if state.Fetching {
		g.BeginFetch(s.ctx)
	}
	if state.Fetching && !state.Serves {
		g.TakeOut(nil)
		g.EndChange()
	}
	return g
}

func (c decideCase) run(t *testing.T, held string) string {
	t.Helper()
	s := unbegun(t)
	if !c.early {
		s.replicas.BeginLoad()
	}
	if c.spent {
		s.replicas.Retire(placement.View{Groups: map[string]placement.Group{"0": {Members: []placement.Member{
			{Shard: "a", VolumeUUID: s.volume.Superblock().Volume, RaftID: 9}}}}})
	}
	state := placement.Group{Name: "0", UUID: uuid.New(), ConfIndex: uint64(max(0, c.index)),
		Members: slices.Clone(c.members)}
	if c.index == 0 && len(c.members) > 0 {
		state.ConfIndex = 7
	}
	for i, m := range state.Members {
		if m.Shard == "a" && m.VolumeUUID == (uuid.UUID{1}) {
			state.Members[i].VolumeUUID = s.volume.Superblock().Volume
		}
	}
	if c.folder != nil {
		g := replicas.State{Replica: member.Replica{Name: "0", RaftID: 1, KnownIndex: 7}, Plan: new(group.Plan)}
		c.folder(&g)
		holding(s, state.UUID, g)
	}
	view := placement.View{
		SetBack: held, Epoch: 100, Shards: map[string]placement.Shard{}, Groups: map[string]placement.Group{"0": state},
		Targets: map[string]placement.Target{"0": {Group: "0", Shards: strings.Fields(c.target)}},
	}
	if c.unknown {
		delete(view.Groups, "0")
	}
	s.watcher.See(view)
	return does(s, s.replicas.Decide(s.replicas.View()), state.UUID)
}

// If the log of a replica has a newer membership than etcd, the replica has not left its group, whatever the manifest
// said when the replica was found.
func TestAReplicaThatServesKnowsItsMembership(t *testing.T) {
	s := lone(t)
	g := madeGroup(t, s, 1)
	log, _, err := group.Load(t.Context(), s.volume.LogOptions(g.UUID, g.Name), &g.Progress)
	must(t, err)
	must(t, errors.Join(log.SetConf(&raftpb.ConfState{Voters: []uint64{1, 2, 3}}, 9), log.Close(false)))
	must(t, format.WriteReplicaFile(s.cfg.FS, s.volume.GroupDir(g.UUID), s.volume.ReplicaFile(g.UUID, 1)))
	if s.loading.Load(t.Context(), g); g.Served() == nil {
		t.Fatal(g.State().Err)
	}
	defer func() { _ = g.Close(context.Background(), false) }()
	for index, want := range map[uint64]bool{7: false, 8: false, 9: true, 10: true} {
		state := placement.Group{Name: g.Name, UUID: g.UUID, ConfIndex: index, Members: others}
		todo := s.replicas.Decide(placement.View{Groups: map[string]placement.Group{"0": state}})
		if left, stays := len(todo.Trash) == 1, len(todo.Present) == 1; left != want || stays == want {
			t.Errorf("etcd's membership is of index %d, the replica's of 9: it has left: %t, and says that it is here: %t",
				index, left, stays)
		}
	}
}

// madeGroup creates a group's folder with the given voters.
func madeGroup(t testing.TB, s *Shard, voters ...uint64) *replicas.Replica {
	t.Helper()
	id := uuid.New()
	g := s.replicas.Add(id, replicas.State{Replica: member.Replica{Name: "0", RaftID: voters[0]}})
	must(t, group.Create(s.volume.LogOptions(g.UUID, g.Name), &raftpb.ConfState{Voters: voters}))
	return g
}

// A folder is served only if it shows to which replica it belongs, and that this replica was created on this volume.
func TestOnlyAReplicaThatWasMadeHereRuns(t *testing.T) {
	s := lone(t)
	for _, c := range []struct {
		name    string
		voters  []uint64
		file    func(f *format.ReplicaFile) // changes the replica file; if it is nil, there is no such file
		words   string                      // part of the error; empty if the replica may run
		foreign bool
	}{
		{name: "the only voter", voters: []uint64{1}},
		{name: "several voters, and no replica file", voters: []uint64{1, 2, 3}, words: "no replica file says which"},
		{name: "one of several", voters: []uint64{1, 2, 3}, file: func(*format.ReplicaFile) {}},
		{name: "of another volume", voters: []uint64{1, 2, 3}, file: func(f *format.ReplicaFile) {
			f.Volume = uuid.New()
		}, words: "a copy never runs", foreign: true},
		{name: "the only voter, of another volume", voters: []uint64{1}, file: func(f *format.ReplicaFile) {
			f.Volume = uuid.New()
		}, words: "a copy never runs",
			foreign: true},
		{name: "of another store", voters: []uint64{1}, file: func(f *format.ReplicaFile) {
			f.Store = uuid.New()
		}, words: "is of group", foreign: true},
		{name: "of another group", voters: []uint64{1}, file: func(f *format.ReplicaFile) {
			f.Group = uuid.New()
		}, words: "is of group", foreign: true},
	} {
		g := madeGroup(t, s, c.voters...)
		if c.file != nil {
			f := s.volume.ReplicaFile(g.UUID, 1)
			c.file(&f)
			must(t, format.WriteReplicaFile(s.cfg.FS, s.volume.GroupDir(g.UUID), f))
		}
		if found := s.volume.Find(g.UUID); found.Foreign != c.foreign || found.Standing.Stray() != c.foreign {
			t.Errorf("%s: found as foreign %t, stray %q", c.name, found.Foreign, found.Standing)
		}
		log, _, err := group.Load(t.Context(), s.volume.LogOptions(g.UUID, g.Name), &g.Progress)
		must(t, err)
		id, err := s.volume.RaftIDOf(g.UUID, log, nil)
		_ = log.Close(false)
		if got := fmt.Sprint(err); c.words == "" && (err != nil || id != 1) || c.words != "" &&
			!strings.Contains(got, c.words) {
			t.Errorf("%s: Raft id %d, error %v; want %q", c.name, id, err, c.words)
		}
	}
	g := madeGroup(t, s, 1)
	log, _, err := group.Load(t.Context(), s.volume.LogOptions(g.UUID, g.Name), &g.Progress)
	must(t, err)
	defer func() { _ = log.Close(false) }()
	must(t, log.SetConf(&raftpb.ConfState{Voters: []uint64{1}, VotersOutgoing: []uint64{2}}, 9))
	if id, err := s.volume.RaftIDOf(g.UUID, log, nil); err == nil {
		t.Errorf("between two memberships, without a replica file: taken for member %d", id)
	}
}

// If the shard of a member gets another volume, the leader examines the group again, because this is the only sign
// that a copy was lost.
func TestAnotherVolumeOfAMemberIsNoticed(t *testing.T) {
	s := lone(t)
	state := placement.Group{Name: "0", UUID: uuid.New(), ConfIndex: 7, Revision: 5, Members: with(memberOn("a", 1, 1))}
	state.Members[0].VolumeUUID = s.volume.Superblock().Volume
	s.replicas.Add(state.UUID, replicas.State{Replica: member.Replica{Name: "0", RaftID: 1, KnownIndex: 7,
		Phase: member.Serving}})
	looks := func(shards ...placement.Shard) bool {
		view := placement.View{Shards: map[string]placement.Shard{}, Groups: map[string]placement.Group{"0": state}}
		for _, shard := range shards {
			view.Shards[shard.Name] = shard
		}
		s.watcher.See(view)
		s.watcher.Reconcile(t.Context())
		return len(s.replicas.Looks.Take()) > 0
	}
	b := placement.Shard{Name: "b", VolumeUUID: uuid.UUID{1}}
	c, replaced := placement.Shard{Name: "c", VolumeUUID: uuid.UUID{1}},
		placement.Shard{Name: "c", VolumeUUID: uuid.UUID{2}}
	for i, step := range []struct {
		shards []placement.Shard
		want   bool
	}{
		{[]placement.Shard{b, c}, true}, {[]placement.Shard{b, c}, false}, {[]placement.Shard{b}, false},
		{[]placement.Shard{b, replaced}, true},
		{[]placement.Shard{b, replaced}, false},
	} {
		if got := looks(step.shards...); got != step.want {
			t.Errorf("view %d: looked at: %t", i, got)
		}
	}
}

// While a replica is being installed again, it may turn out that it has left its group. The replica is moved to the
// trash only after the installation has ended.
func TestAReplicaThatIsInstalledAnewMayLeave(t *testing.T) {
	s := lone(t)
	for range cap(s.installer.slots) {
		// All slots are in use, so the replica has to wait for its turn.
		s.installer.slots <- struct{}{}
	}
	g := holding(s, uuid.New(), replicas.State{Replica: member.Replica{Name: "0", RaftID: 1, KnownIndex: 7,
		Phase: member.Serving, Serves: true}})
	others := []placement.Member{{Shard: "b", VolumeUUID: uuid.New(), RaftID: 3}}
	g.Learn(others)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.installer.installAgain(t.Context(), g, 3)
	}()
	state := placement.Group{Name: "0", UUID: g.UUID, ConfIndex: 9, Members: others}
	decide := func() replicas.Work {
		return s.replicas.Decide(placement.View{Groups: map[string]placement.Group{"0": state}})
	}
	look := func() (fetching bool, todo replicas.Work) {
		if !g.State().Fetching {
			return false, replicas.Work{}
		}
		g.TakeOut(nil) // an installation that ends stops the replica in this way
		g.EndChange()
		return true, decide()
	}
	for {
		if fetching, todo := look(); fetching {
			if !todo.Later || len(todo.Trash) > 0 {
				t.Errorf("while it is installed: later %t, trash %d", todo.Later, len(todo.Trash))
			}
			break
		}
		runtime.Gosched()
	}
	<-ended
	if todo := decide(); len(todo.Trash) != 1 {
		t.Errorf("after the install: trash %d", len(todo.Trash))
	}
}
