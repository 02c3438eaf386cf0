package shard

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/replica"
	"sheaf.dev/sheaf/internal/vfs/vfstest"
	"sheaf.dev/sheaf/internal/volume"
)

// lone makes shard a with a volume in memory. Nothing of it runs.
func lone(t *testing.T) *Shard {
	t.Helper()
	cfg := Config{Name: "a", Dir: "v", FS: vfstest.NewMem(), SegmentBytes: 64 << 10}
	cfg.setDefaults()
	s := newShard(cfg)
	s.store = uuid.New()
	var err error
	s.volume, err = volume.Open(volume.Options{FS: cfg.FS, Dir: cfg.Dir, Store: s.store, Shard: cfg.Name, Create: true, Logger: s.logger})
	if err != nil {
		t.Fatal(err)
	}
	s.committer, s.loader, s.hub = replica.NewCommitter(), s.newLoader(), s.newHub()
	s.load.beganAt = time.Now()
	t.Cleanup(func() {
		s.hub.Close()
		s.committer.Close()
		s.loader.Close()
		if err := s.volume.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// does are the words for what a shard is to do about one group.
func does(s *Shard, todo work, g *groupReplica) string {
	var words []string
	for _, one := range []struct {
		word string
		n    int
	}{
		{"create", len(todo.create)}, {"adopt", len(todo.adopt)}, {"begin", len(todo.begin)}, {"confess", len(todo.confess)},
		{"claim", len(todo.claim)}, {"load", len(todo.load)}, {"join", len(todo.join)}, {"mend", len(todo.mend)}, {"leave", len(todo.leave)}, {"trash", len(todo.trash)},
	} {
		if one.n > 0 {
			words = append(words, one.word)
		}
	}
	if todo.later {
		words = append(words, "later")
	}
	if there := s.groups[g.uuid]; there != nil && there.lost {
		words = append(words, "lost")
	} else if there != nil && there.stray != "" && len(todo.trash) == 0 {
		words = append(words, "stray")
	}
	return strings.Join(words, " ")
}

// decideCase is a group of which a folder is on shard a, or not, and what etcd says of it.
type decideCase struct {
	name    string
	folder  func(g *groupReplica) // nil: there is none; given is one of Raft id 1 with the membership of index 7
	members []placement.Member    // volume 1 is that of shard a
	index   int64                 // of this membership; -1: nobody wrote one
	target  string                // shards
	early   bool                  // the first load has not begun
	unknown bool                  // to etcd
	want    string
	held    string // while etcd was set back
}

func plain(*groupReplica) {}

// member is one on volume 1 of its shard, or on another.
func member(shard string, volume byte, raftID uint64, role ...placement.Role) placement.Member {
	m := placement.Member{Shard: shard, VolumeUUID: uuid.UUID{volume}, RaftID: raftID}
	if len(role) > 0 {
		m.Role = role[0]
	}
	return m
}

var (
	others = []placement.Member{member("b", 1, 2), member("c", 1, 3)}
	with   = func(m ...placement.Member) []placement.Member { return append(m, others...) }
	of     = func(m ...placement.Member) []placement.Member { return m }
)

var decideCases = []decideCase{
	{name: "a member", folder: plain, members: with(member("a", 1, 1)), want: "load", held: "load"},
	{name: "the only member", folder: plain, members: of(member("a", 1, 1)), index: -1, want: "load", held: "load"},
	{name: "a learner without data", folder: joins, members: with(member("a", 1, 1, placement.Learner)), want: "join"},
	{name: "a member that has left", folder: plain, members: others, want: "trash", held: "stray"},
	{name: "a member that has left, and is replaced here", folder: plain, members: with(member("a", 1, 9, placement.Learner)), want: "trash", held: "stray"},
	{name: "etcd's membership is older", folder: plain, members: others, index: 6, want: "stray", held: "stray"},
	{name: "etcd's membership is older, and the replica's has it", folder: inConf(1, 2, 3), members: others, index: 6, want: "claim", held: "stray"},
	{name: "the replica's membership is older, and has it", folder: inConf(1, 2, 3), members: others, want: "trash", held: "stray"},
	{name: "etcd's membership is older, and the replica's has it not", folder: inConf(2, 3), members: others, index: 6, want: "stray", held: "stray"},
	{name: "etcd's membership is older, and names another one here", folder: inConf(1, 2, 3), members: with(member("a", 1, 9)), index: 6, want: "lost",
		held: "stray"},
	{name: "nobody wrote a membership", folder: plain, members: others, index: -1, want: "stray", held: "stray"},
	{name: "the only copy, where nobody ever wrote a membership", folder: func(g *groupReplica) { g.confIndex = 0 }, members: others, index: -1,
		want: "stray", held: "stray"},
	{name: "its folder cannot be read", folder: unread, members: others, want: "stray", held: "stray"},
	{name: "its Raft id is not known", folder: func(g *groupReplica) { g.raftID = 0 }, members: others, want: "stray", held: "stray"},
	{name: "made here and never told", folder: untold, members: others, want: "stray", held: "stray"},
	{name: "a learner that is not wanted any more", folder: joins, members: others, want: "trash"},
	{name: "the first learner, not wanted any more", folder: joins, members: others[:1], index: -1, want: "trash"},
	{name: "such a learner, as it fetches", folder: func(g *groupReplica) { joins(g); g.stopFetch = func() {} }, members: others, want: "later"},
	{name: "a lost one", folder: func(g *groupReplica) { g.lost = true }, members: others, want: "lost", held: "lost"},
	{name: "the only copy is of another volume", folder: copied, members: of(member("a", 2, 1)), want: "lost", held: "stray"},
	{name: "a copy is of another volume", folder: copied, members: with(member("a", 2, 1)), want: "stray", held: "stray"},
	{name: "a copy of another volume, not named", folder: copied, members: others, want: "stray", held: "stray"},
	{name: "a copy of another volume, replaced", folder: copied, members: with(member("a", 1, 9, placement.Learner)), want: "trash", held: "stray"},
	{name: "a copied folder of a member", folder: copied, members: with(member("a", 1, 1)), want: "lost", held: "stray"},
	{name: "a learner is wanted", members: with(member("a", 1, 9, placement.Learner)), want: "begin"},
	{name: "a learner is wanted, and its folder holds nothing", folder: remnant, members: with(member("a", 1, 9, placement.Learner)), want: "begin"},
	{name: "a voter whose folder holds nothing", folder: remnant, members: with(member("a", 1, 9)), want: "", held: ""},
	{name: "the only copy, whose folder holds nothing", folder: remnant, members: of(member("a", 1, 9)), index: -1, want: "", held: ""},
	{name: "a learner that was here before", early: true, members: with(member("a", 1, 9, placement.Learner)), want: "confess"},
	{name: "a voter's folder is gone", members: with(member("a", 1, 1)), want: "confess"},
	{name: "the only copy's folder is gone", members: of(member("a", 1, 1)), index: -1, want: "lost"},
	{name: "the only copy's volume is gone", members: of(member("a", 2, 1)), index: -1, target: "a", want: "lost"},
	{name: "a voter's volume is gone", members: with(member("a", 2, 1)), target: "a b c", want: ""},
	{name: "a torn member", folder: torn, members: with(member("a", 1, 1)), want: "mend"},
	{name: "a torn member, before the first load", folder: torn, early: true, members: with(member("a", 1, 1)), want: ""},
	{name: "a torn member that is given up", folder: givenUp, members: with(member("a", 1, 1)), want: "confess"},
	{name: "a torn member that etcd knows is given up", folder: givenUp, members: with(placement.Member{Shard: "a", RaftID: 1}), want: "stray"},
	{name: "such a one that was removed", folder: givenUp, members: others, want: "trash"},
	{name: "a member whose volume etcd does not know", folder: plain, members: with(placement.Member{Shard: "a", RaftID: 1}), want: "stray", held: "stray"},
	{name: "its folder cannot be read, and it is replaced", folder: unread, members: with(member("a", 1, 9, placement.Learner)), want: "trash",
		held: "stray"},
	{name: "etcd does not know where it is", folder: plain, members: with(placement.Member{RaftID: 1}), want: "claim", held: "stray"},
	{name: "a new group", target: "a b c", want: "create"},
	{name: "a new group that another makes", target: "b a c", want: ""},
	{name: "a group that others have", members: others, target: "a b c", want: ""},
	{name: "a group that was half made", folder: unread, target: "a", want: "create", held: "stray"},
	{name: "a group that was made", folder: plain, target: "a", want: "adopt stray", held: "stray"},
	{name: "a folder of a group without members", folder: plain, target: "b", want: "stray", held: "stray"},
	{name: "an older view", folder: func(g *groupReplica) { g.confirmed = 101 }, target: "a", want: "", held: "stray"},
	{name: "a group that etcd does not know", folder: plain, unknown: true, want: "stray", held: "stray"},
	{name: "such a group that serves", folder: serves, unknown: true, want: "leave stray"},
	{name: "another name", folder: func(g *groupReplica) { g.name = "1" }, members: with(member("a", 1, 1)), want: "stray", held: "stray"},
}

func serves(g *groupReplica) { g.served.Store(&served{group: g, raftID: 1}) }
func torn(g *groupReplica)   { g.torn, g.state = true, recordv1.GroupState_GROUP_STATE_FAILED }
func givenUp(g *groupReplica) {
	torn(g)
	g.givenUp = true
}
func joins(g *groupReplica) { g.joining, g.confIndex = true, 0 }
func inConf(voters ...uint64) func(*groupReplica) {
	return func(g *groupReplica) { g.conf = &raftpb.ConfState{Voters: voters} }
}
func untold(g *groupReplica) { g.stray = unconfirmed }
func copied(g *groupReplica) {
	g.foreign, g.stray = "it was made on another volume", "it was made on another volume"
}
func unread(g *groupReplica) {
	g.unreadable, g.confIndex, g.name = true, 0, ""
	g.state = recordv1.GroupState_GROUP_STATE_FAILED
}

// remnant is a folder that does not even say which replica it is.
func remnant(g *groupReplica) {
	unread(g)
	g.raftID = 0
}

// What a shard does with what is on its volume, as etcd says, and what it leaves alone.
func TestWhatAShardDoesAboutAGroup(t *testing.T) {
	for _, c := range decideCases {
		for held, want := range map[string]string{"": c.want, "etcd was set back": c.held} {
			if got := c.run(lone(t), held); got != want {
				t.Errorf("%s%s: %q, want %q", c.name, map[bool]string{true: ", while etcd was set back"}[held != ""], got, want)
			}
		}
	}
}

func (c decideCase) run(s *Shard, held string) string {
	if c.early {
		s.load.beganAt = time.Time{}
	}
	state := placement.Group{Name: "0", UUID: uuid.New(), ConfIndex: uint64(max(0, c.index)), Members: slices.Clone(c.members)}
	if c.index == 0 && len(c.members) > 0 {
		state.ConfIndex = 7
	}
	for i, m := range state.Members {
		if m.Shard == "a" && m.VolumeUUID == (uuid.UUID{1}) {
			state.Members[i].VolumeUUID = s.volume.Superblock().Volume
		}
	}
	g := &groupReplica{
		name: "0", uuid: state.UUID, raftID: 1, confIndex: 7, state: recordv1.GroupState_GROUP_STATE_PENDING,
	}
	if c.folder != nil {
		c.folder(g)
		s.groups[g.uuid] = g
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = held
	s.view = placement.View{
		Epoch: 100, Shards: map[string]placement.Shard{}, Groups: map[string]placement.Group{"0": state},
		Targets: map[string]placement.Target{"0": {Group: "0", Shards: strings.Fields(c.target)}},
	}
	if c.unknown {
		delete(s.view.Groups, "0")
	}
	return does(s, s.decide(s.view), g)
}

// Once the log of a replica knows a newer membership than etcd, it has not left, whatever its manifest said when it was found.
func TestAReplicaThatServesKnowsItsMembership(t *testing.T) {
	s := lone(t)
	g := madeGroup(t, s, 1)
	log, _, err := group.Load(t.Context(), s.logOptions(g), &g.progress)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close(false) }()
	if err := log.SetConf(&raftpb.ConfState{Voters: []uint64{1, 2, 3}}, 9); err != nil {
		t.Fatal(err)
	}
	g.served.Store(&served{group: g, log: log, raftID: 1})
	for index, want := range map[uint64]bool{7: false, 8: false, 9: true, 10: true} {
		if got := g.hasLeft(placement.Group{ConfIndex: index, Members: others}); got != want {
			t.Errorf("etcd's membership is of index %d, the replica's of 9: it has left: %t", index, got)
		}
	}
}

// madeGroup makes the folder of a group with these voters.
func madeGroup(t *testing.T, s *Shard, voters ...uint64) *groupReplica {
	t.Helper()
	id := uuid.New()
	g := &groupReplica{name: "0", uuid: id, dir: s.volume.GroupDir(id), raftID: voters[0]}
	if err := group.Create(s.logOptions(g), &raftpb.ConfState{Voters: voters}); err != nil {
		t.Fatal(err)
	}
	return g
}

// A folder runs only where it says which replica it is, and that it was made here.
func TestOnlyAReplicaThatWasMadeHereRuns(t *testing.T) {
	s := lone(t)
	for _, c := range []struct {
		name    string
		voters  []uint64
		file    func(f *group.ReplicaFile) // nil: there is none
		words   string                     // of the error; empty: it may run
		foreign bool
	}{
		{name: "the only voter", voters: []uint64{1}},
		{name: "several voters, and no replica file", voters: []uint64{1, 2, 3}, words: "no replica file says which"},
		{name: "one of several", voters: []uint64{1, 2, 3}, file: func(*group.ReplicaFile) {}},
		{name: "of another volume", voters: []uint64{1, 2, 3}, file: func(f *group.ReplicaFile) { f.Volume = uuid.New() }, words: "a copy never runs", foreign: true},
		{name: "the only voter, of another volume", voters: []uint64{1}, file: func(f *group.ReplicaFile) { f.Volume = uuid.New() }, words: "a copy never runs",
			foreign: true},
		{name: "of another store", voters: []uint64{1}, file: func(f *group.ReplicaFile) { f.Store = uuid.New() }, words: "is of group", foreign: true},
		{name: "of another group", voters: []uint64{1}, file: func(f *group.ReplicaFile) { f.Group = uuid.New() }, words: "is of group", foreign: true},
	} {
		g := madeGroup(t, s, c.voters...)
		if c.file != nil {
			f := s.replicaFile(g, 1)
			c.file(&f)
			if err := group.WriteReplicaFile(s.cfg.FS, g.dir, f); err != nil {
				t.Fatal(err)
			}
		}
		if found := s.foundGroup(g.uuid); (found.foreign != "") != c.foreign || (found.stray != "") != c.foreign {
			t.Errorf("%s: found as foreign %q, stray %q", c.name, found.foreign, found.stray)
		}
		log, _, err := group.Load(t.Context(), s.logOptions(g), &g.progress)
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.raftIDOf(g, log)
		_ = log.Close(false)
		if got := fmt.Sprint(err); c.words == "" && (err != nil || id != 1) || c.words != "" && !strings.Contains(got, c.words) {
			t.Errorf("%s: Raft id %d, error %v; want %q", c.name, id, err, c.words)
		}
	}
	g := madeGroup(t, s, 1)
	log, _, err := group.Load(t.Context(), s.logOptions(g), &g.progress)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close(false) }()
	if err := log.SetConf(&raftpb.ConfState{Voters: []uint64{1}, VotersOutgoing: []uint64{2}}, 9); err != nil {
		t.Fatal(err)
	}
	if id, err := s.raftIDOf(g, log); err == nil {
		t.Errorf("between two memberships, without a replica file: taken for member %d", id)
	}
}

// The leader looks at a group again when the shard of a member has another volume: nothing else tells it that a copy is gone.
func TestAnotherVolumeOfAMemberIsNoticed(t *testing.T) {
	s := lone(t)
	state := placement.Group{Name: "0", UUID: uuid.New(), ConfIndex: 7, Revision: 5, Members: with(member("a", 1, 1))}
	state.Members[0].VolumeUUID = s.volume.Superblock().Volume
	g := &groupReplica{name: "0", uuid: state.UUID, raftID: 1, confIndex: 7, state: recordv1.GroupState_GROUP_STATE_SERVING}
	s.groups[g.uuid] = g
	looks := func(shards ...placement.Shard) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.view = placement.View{Shards: map[string]placement.Shard{}, Groups: map[string]placement.Group{"0": state}}
		for _, shard := range shards {
			s.view.Shards[shard.Name] = shard
		}
		s.decide(s.view)
		due, _ := s.steering.take()
		for _, g := range due {
			s.steering.done(g, false, nil)
		}
		return len(due) > 0
	}
	b := placement.Shard{Name: "b", VolumeUUID: uuid.UUID{1}}
	c, replaced := placement.Shard{Name: "c", VolumeUUID: uuid.UUID{1}}, placement.Shard{Name: "c", VolumeUUID: uuid.UUID{2}}
	for i, step := range []struct {
		shards []placement.Shard
		want   bool
	}{
		{[]placement.Shard{b, c}, true}, {[]placement.Shard{b, c}, false}, {[]placement.Shard{b}, false}, {[]placement.Shard{b, replaced}, true},
		{[]placement.Shard{b, replaced}, false},
	} {
		if got := looks(step.shards...); got != step.want {
			t.Errorf("view %d: looked at: %t", i, got)
		}
	}
}

// A list of members that lacks one is not written to etcd as the membership: the one that it lacks would take itself for gone.
func TestAMembershipIsWrittenOnlyWhole(t *testing.T) {
	registry := newRegistry(placement.Routing{Mode: placement.Hash, Groups: 1}, "s1")
	f := start(t, registry, nil).ready()
	sv := f.served(0)
	var state groupView
	f.eventually("the shard sees the member that it has told etcd of", func() bool {
		state, _ = f.shard.stateOf(sv.group)
		return len(state.Members) == 1
	})
	for name, c := range map[string]struct {
		conf *raftpb.ConfState
		want bool
	}{
		"nobody":        {&raftpb.ConfState{}, true},
		"a voter":       {&raftpb.ConfState{Voters: []uint64{99}}, false},
		"one that goes": {&raftpb.ConfState{VotersOutgoing: []uint64{99}}, false},
		"a learner":     {&raftpb.ConfState{Learners: []uint64{99}}, false},
		"one to come":   {&raftpb.ConfState{LearnersNext: []uint64{99}}, false},
	} {
		m := sv.replica.Members()
		c.conf.Voters = append(c.conf.Voters, sv.raftID)
		m.Conf, m.Term = c.conf, m.Term+1
		before := registry.now().Groups["0"].Revision
		_, err := f.shard.step(t.Context(), sv, m, state)
		if wrote := registry.now().Groups["0"].Revision != before; wrote != c.want {
			t.Errorf("%s is not named: written: %t, %v", name, wrote, err)
		}
		state, _ = f.shard.stateOf(sv.group)
		state.Term = 0
	}
}

// A replica that is installed anew beside serving, and leaves its group meanwhile, ends its install first.
func TestAReplicaThatIsInstalledAnewMayLeave(t *testing.T) {
	s := lone(t)
	for range cap(s.installs) {
		s.installs <- struct{}{} // others are installed: it waits for its turn
	}
	g := &groupReplica{name: "0", uuid: uuid.New(), raftID: 1, confIndex: 7, state: recordv1.GroupState_GROUP_STATE_SERVING}
	serves(g)
	others := []placement.Member{{Shard: "b", VolumeUUID: uuid.New(), RaftID: 3}}
	g.learn(others)
	s.groups[g.uuid] = g
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.installAgain(t.Context(), g, 3)
	}()
	state := placement.Group{Name: "0", UUID: g.uuid, ConfIndex: 9, Members: others}
	look := func() (fetching bool, todo work) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if g.copying.Load() == nil {
			return false, work{}
		}
		g.served.Store(nil) // paused, as for the end of an install
		s.decideOne(&todo, placement.View{}, state, g)
		return true, todo
	}
	for {
		if fetching, todo := look(); fetching {
			if !todo.later || len(todo.trash) > 0 {
				t.Errorf("while it is installed: later %t, trash %d", todo.later, len(todo.trash))
			}
			break
		}
		runtime.Gosched()
	}
	<-ended
	var todo work
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decideOne(&todo, placement.View{}, state, g); len(todo.trash) != 1 {
		t.Errorf("after the install: trash %d", len(todo.trash))
	}
}
