package shard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// tailDamage is a kind of damage to the end of a log.
type tailDamage int

const (
	lastEntry tailDamage = iota // an entry in a synced batch; a quorum may have needed this copy of it
	lastVote                    // state record after that entry, with the term, the vote and the commit index
	manifest
)

// damageTail damages the only group on a shard that was stopped.
func damageTail(t testing.TB, f *fixture, what tailDamage) {
	t.Helper()
	disk := f.cfg.FS
	found := filesIn(t, disk, filepath.Join(f.cfg.Dir, "groups"))
	if len(found) != 1 {
		t.Fatalf("folders %v", found)
	}
	dir := found[0]
	ok := func(err error) {
		t.Helper()
		must(t, err)
	}
	hit := func(name string, at int64, b []byte) {
		t.Helper()
		file, err := disk.OpenWrite(path.Join(dir, name))
		ok(err)
		_, err = file.WriteAt(b, at)
		ok(err)
		ok(file.Close())
	}
	if what == manifest {
		hit(format.ManifestName, 0, make([]byte, 64<<10))
		return
	}
	// If the machine is slow, the shard may have had time to write a part of the hint file, and a load that uses this
	// part would not read the damaged bytes. Therefore the file is removed.
	if err := disk.Remove(path.Join(dir, format.ActiveHintName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	m, err := format.ReadManifest(disk, dir)
	ok(err)
	active := m.Segments[len(m.Segments)-1]
	entry, state, size := lastBatch(t, disk, path.Join(dir, format.SegmentName(active.Number)), active.ID)
	// Only the batch itself was synced, so all bytes after it are lost.
	end := state.Offset + state.Bytes
	hit(format.SegmentName(active.Number), end, make([]byte, size-end))
	mark, _, _, err := format.ReadMark(disk, dir)
	ok(err)
	file, err := disk.OpenWrite(path.Join(dir, format.MarkName))
	ok(err)
	ok(format.WriteMark(file, format.Mark{Sequence: mark.Sequence + 1, Segment: active.ID, Offset: end,
		Index: entry.Entry.Index}))
	ok(file.Close())
	if what == lastVote {
		entry = state
	}
	hit(format.SegmentName(active.Number), entry.Offset, []byte("these bytes are bad"))
}

// lastBatch searches a segment for the last entry that was not committed yet when its batch was written. It returns
// the positions of this entry and of the batch's state record. A quorum may have needed this replica's copy of the
// entry. If the other replicas already form a quorum, this one may lag behind, and then write an entry and its commit
// in the same batch. To prevent that, the caller must make the last put while the other follower is down. Then the
// entry is not committed before this replica has synced it.
func lastBatch(t testing.TB, disk vfs.FS, name string, id format.SegmentID) (entry, state segio.FrameStep, size int64) {
	t.Helper()
	file, err := disk.Open(name)
	must(t, err)
	defer file.Close()
	if size, err = file.Size(); err != nil {
		t.Fatal(err)
	}
	var last segio.FrameStep // last entry, as long as no state record follows it
	frames := segio.NewFrameReader(file, id, format.SegmentHeaderBytes, size)
	for frames.Next() {
		step := frames.Step()
		if step.Status != segio.FrameWhole {
			continue
		}
		if step.Entry.Kind != format.KindState {
			last = *step
			continue
		}
		record, err := format.DecodeStateRecord(step.Entry.Data)
		must(t, err)
		if last.Bytes > 0 && record.Commit < last.Entry.Index {
			entry, state = last, *step
		}
		last = segio.FrameStep{}
	}
	if err := frames.Err(); err != nil || entry.Bytes == 0 {
		t.Fatalf("%s: no entry above the commit of its batch, %v", name, err)
	}
	return entry, state, size
}

// tails returns the number of damaged tails that the metric has counted with the given outcome.
func tails(t testing.TB, metrics *prometheus.Registry, outcome string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "sheaf_shard_damaged_tails_total" && l.GetName() == "outcome" && l.GetValue() == outcome {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	t.Fatal("there is no such metric")
	return 0
}

// A replica that may lack acknowledged entries, or that has forgotten its vote, must recover without the help of an
// operator. If another copy is known to hold all of its entries, it keeps its Raft id. Otherwise it is replaced by a
// new replica.
func TestAReplicaWithADamagedTailComesBack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		for name, what := range map[string]tailDamage{"an entry": lastEntry, "a vote": lastVote, "the manifest": manifest} {
			t.Run(name, func(t *bubble) {
				comesBack(t, what)
			})
		}
	})
}

func comesBack(t testing.TB, what tailDamage) {
	c := settledCluster(t, oneGroup)
	c.fill(18, 1000)
	c.kill("b")
	c.put(18, data(18, 1000))
	synctest.Wait()           // c learns of the commit of record 18, and will log it with the next entry
	c.put(19, data(19, 1000)) // see lastBatch
	c.kill("c")
	f := c.stopped["c"]
	damageTail(t, f, what)
	c.restart("b")
	c.put(20, data(20, 1000)) // a and b form a majority even without c
	before, _ := replicas.MemberOf(c.registry.now().Groups["0"], "c")
	metrics := prometheus.NewRegistry()
	f.cfg.Registry = metrics
	c.restart("c")
	s := c.shards["c"].shard
	c.eventually("c has a replica that votes again", func() bool {
		g := c.registry.now().Groups["0"]
		m, _ := replicas.MemberOf(g, "c")
		sv := s.replicas.Routes().Served(g.UUID)
		if sv != nil && sv.RaftID == before.RaftID && what != lastEntry {
			t.Fatal("it runs as what it was")
		}
		leader := c.shards[g.Leader]
		if sv == nil || leader == nil || m.Role != placement.Voter || sv.RaftID != m.RaftID ||
			m.VolumeUUID != s.volume.Superblock().Volume {
			return false
		}
		leads := leader.shard.replicas.Routes().Served(g.UUID)
		return leads != nil && sv.Log().AppliedIndex() == leads.Log().AppliedIndex()
	})
	after, _ := replicas.MemberOf(c.registry.now().Groups["0"], "c")
	trash := trashOf(t, f)
	if what == lastEntry && (after.RaftID != before.RaftID || len(trash) > 0 || tails(t, metrics, tailInstalled) != 1) {
		t.Errorf("another copy has all: member %+v, was %+v; trash %v, installed %v", after, before, trash,
			tails(t, metrics, tailInstalled))
	}
	if what != lastEntry && (after.RaftID == before.RaftID || len(trash) != 1 || tails(t, metrics, tailGivenUp) != 1) {
		t.Errorf("it was not replaced: member %+v, was %+v; trash %v, given up %v", after, before, trash,
			tails(t, metrics, tailGivenUp))
	}
	if n := tails(t, metrics, tailFound); n != 1 {
		t.Errorf("found %v times", n)
	}
	c.settled(abc...)
	if err := s.compactor.Trash.Empty(time.Now().Add(2 * time.Hour)); err != nil || len(trashOf(t, f)) > 0 {
		t.Errorf("the new copy is complete, and the old one stays: %v, %v", trashOf(t, f), err)
	}
	c.kill("a")
	c.filled(21, 1000)
}

// A replica whose tail is damaged right after files were installed must be replaced, even if nothing has been written
// to the group since then. In this case, the files that the leader offers are the same as those that the replica has.
func TestADamagedTailBehindInstalledFilesComesBack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, oneGroup)
		c.kill("c")
		for n := range 4 {
			c.fill(10, 1000+n)
		}
		// When a and b have compacted their logs, they no longer have the entries that c lacks, so c needs files.
		for _, name := range []string{"a", "b"} {
			f := c.shards[name]
			if _, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", All: true}); err != nil {
				t.Fatal(err)
			}
		}
		group := func(name string) *replicas.Served {
			return c.shards[name].shard.replicas.Routes().Served(c.registry.now().Groups["0"].UUID)
		}
		whole := func() bool {
			leader, sv := c.registry.now().Groups["0"].Leader, group("c")
			return leader != "" && sv != nil && sv.Log().AppliedIndex() == group(leader).Log().AppliedIndex()
		}
		c.restart("c")
		c.eventually("c has everything", whole)
		before := group("c").RaftID
		c.kill("c")
		f := c.stopped["c"]
		dir := filesIn(t, f.cfg.FS, filepath.Join(f.cfg.Dir, "groups"))[0]
		m, err := format.ReadManifest(f.cfg.FS, dir)
		must(t, err)
		active, err := f.cfg.FS.OpenWrite(path.Join(dir, format.SegmentName(m.Segments[len(m.Segments)-1].Number)))
		must(t, err)
		must(t, errors.Join(active.Truncate(format.SegmentHeaderBytes/2), active.Sync(), active.Close()))
		metrics := prometheus.NewRegistry()
		f.cfg.Registry = metrics
		c.restart("c")
		c.eventually("c has a replica again", whole)
		c.settled(abc...)
		if found := tails(t, metrics, tailFound); found != 1 || group("c").RaftID == before {
			t.Errorf("%v damaged tails were found, and the replica that has forgotten its vote is replaced: %t", found,
				group("c").RaftID != before)
		}
		c.filled(10, 1003)
	})
}

// As long as the other members have no majority, no replica is given up. The status must name the group, and must say
// what has to be done.
func TestADamagedTailStaysWhereNobodyCanReplaceIt(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, oneGroup)
		c.fill(3, 1000)
		c.kill("b")
		c.put(3, data(3, 1000))
		synctest.Wait()         // c learns of the commit of record 3, and will log it with the next entry
		c.put(4, data(4, 1000)) // see lastBatch
		c.kill("a")
		c.kill("c")
		f := c.stopped["c"]
		damageTail(t, f, lastVote)
		c.restart("c")
		s := c.shards["c"].shard
		c.eventually("its status says so", func() bool {
			st := s.Status()
			return len(st.Groups) == 1 && st.Groups[0].Group == "0" && st.Groups[0].GetState().Word() == "Failed" &&
				strings.Contains(st.Groups[0].Message, "start the shards")
		})
		if s.replicas.Routes().Served(c.registry.now().Groups["0"].UUID) != nil {
			t.Error("it runs")
		}
		if m, _ := replicas.MemberOf(c.registry.now().Groups["0"], "c"); m.VolumeUUID != s.volume.Superblock().Volume ||
			len(trashOf(t, f)) > 0 {
			t.Errorf("it was given up: %+v, trash %v", m, trashOf(t, f))
		}
		c.restart("b")
		group := c.registry.now().Groups["0"]
		group.Leader = "b"
		c.eventually("b is there", func() bool {
			_, known := s.replicas.Address("b")
			return known && c.shards["b"].shard.replicas.Routes().Served(group.UUID) != nil
		})
		if s.installer.isLed(t.Context(), group) {
			t.Error("b is taken for the leader, and has no majority")
		}
		c.restart("a")
		c.eventually("somebody leads", func() bool { return s.installer.isLed(t.Context(), c.registry.now().Groups["0"]) })
		c.settled(abc...)
		c.filled(5, 1000)
	})
}

// A replica is given up only if it is a learner, or if there are enough other voters to remove it.
func TestWhoIsGivenUp(t *testing.T) {
	for _, c := range []struct {
		name    string
		members []placement.Member
		want    bool
	}{
		{"the only copy", of(memberOn("a", 1, 1)), false},
		{"one of two", of(memberOn("a", 1, 1), memberOn("b", 1, 2)), false},
		{"one of two, and a learner comes", of(memberOn("a", 1, 1), memberOn("b", 1, 2),
			memberOn("c", 1, 3, placement.Learner)), false},
		{"one of three", with(memberOn("a", 1, 1)), true},
		{"a learner beside one", of(memberOn("a", 1, 1, placement.Learner), memberOn("b", 1, 2)), true},
	} {
		if got := isReplaceable(placement.Group{Members: c.members}, 1); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// The files of a replica stay in the trash, no matter how old they are, until a complete replica has taken its place.
func TestTheTrashWaitsForTheNewCopy(t *testing.T) {
	s := lone(t)
	g := madeGroup(t, s, 1)
	must(t, s.compactor.Trash.Put(s.volume.GroupDir(g.UUID), g.UUID, 1))
	late := time.Now().Add(24 * time.Hour)
	kept := func(members ...placement.Member) bool {
		t.Helper()
		for i, m := range members {
			if m.Shard == "a" {
				members[i].VolumeUUID = s.volume.Superblock().Volume
			}
		}
		s.watcher.See(placement.View{Groups: map[string]placement.Group{"0": {Name: "0", UUID: g.UUID, Members: members}}})
		must(t, s.compactor.Trash.Empty(late))
		names, err := s.cfg.FS.List(s.volume.TrashDir())
		return err == nil && len(names) == 1
	}
	if !kept(memberOn("b", 1, 2), memberOn("a", 1, 9, placement.Learner)) {
		t.Error("a learner is to come, and the old folder is gone")
	}
	s.replicas.Add(g.UUID, replicas.State{Replica: member.Replica{Name: "0", RaftID: 9, Phase: member.Joining}})
	if !kept(memberOn("b", 1, 2), memberOn("a", 1, 9)) {
		t.Error("it is not complete, and the old folder is gone")
	}
	if kept(memberOn("b", 1, 2)) {
		t.Error("none is to come, and the old folder stays")
	}
}

// If a replica was started on the previous volume, it must not be started again with the same Raft id, because it may
// have acknowledged entries or voted.
func TestRule7_ALearnerIsNeverBegunTwice(t *testing.T) {
	s := lone(t)
	id, here := uuid.New(), s.volume.Superblock().Volume
	view := func(raftID uint64) placement.View {
		state := placement.Group{Name: "0", UUID: id, ConfIndex: 7,
			Members: with(placement.Member{Shard: "a", VolumeUUID: here, RaftID: raftID, Role: placement.Learner})}
		return placement.View{Epoch: 100, Groups: map[string]placement.Group{"0": state},
			Targets: map[string]placement.Target{}}
	}
	does := func(v placement.View) string {
		s.watcher.See(v)
		todo := s.replicas.Decide(v)
		return fmt.Sprint("make folder ", len(todo.MakeFolder), ", confess ", len(todo.Missing))
	}
	s.replicas.Retire(view(9)) // a shard calls Retire when it starts
	if got := does(view(9)); got != "make folder 0, confess 1" {
		t.Errorf("a learner that was recorded before the start: %s", got)
	}
	if got := does(view(11)); got != "make folder 1, confess 0" {
		t.Errorf("a new learner: %s", got)
	}
	must(t, (actions{s}).MakeFolder(view(11).Groups["0"]))
	g := s.replicas.Find(id)
	must(t, (actions{s}).Trash(context.Background(), g))
	if got := does(view(11)); got != "make folder 0, confess 1" {
		t.Errorf("a learner that was begun, and has gone: %s", got)
	}
	if got := does(view(13)); got != "make folder 1, confess 0" {
		t.Errorf("its successor: %s", got)
	}
}

// If there is already a folder where a new replica is to be created, that folder is moved to the trash. It must never
// become a part of the new replica.
func TestANewReplicaBeginsInAnEmptyFolder(t *testing.T) {
	s := lone(t)
	g := madeGroup(t, s, 1)
	g = s.replicas.Add(g.UUID, replicas.State{Replica: member.Replica{Name: "0", RaftID: 1, Phase: member.Lost}})
	state := placement.Group{Name: "0", UUID: g.UUID, Members: of(placement.Member{Shard: "a",
		VolumeUUID: s.volume.Superblock().Volume, RaftID: 9, Role: placement.Learner})}
	must(t, (actions{s}).MakeFolder(state))
	file, found, err := format.ReadReplicaFile(s.cfg.FS, s.volume.GroupDir(g.UUID))
	if err != nil || !found || !file.Joining || file.RaftID != 9 {
		t.Errorf("the folder is that of %+v, %t, %v", file, found, err)
	}
	names, err := s.cfg.FS.List(s.volume.GroupDir(g.UUID))
	trash, _ := s.cfg.FS.List(s.volume.TrashDir())
	if err != nil || !slices.Equal(names, []string{format.ReplicaName}) || len(trash) != 1 {
		t.Errorf("it holds %v, %v; the trash %v", names, err, trash)
	}
}
