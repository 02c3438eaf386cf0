package chaos

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
)

// logFact describes the entry at one index of a replica's log.
type logFact struct {
	index, term uint64
	kind        format.Kind
	id          int64
	data        uint32 // CRC of the record's data
	request     [16]byte
	remembered  format.Request // what remains known of a put or delete after compaction has dropped its data
}

// agrees reports whether the entries of two logs at the same index are compatible. Each copy is compacted on its own
// schedule. So after a write was superseded, one copy may still hold the whole write, while another copy holds only
// the remembered request.
func (f logFact) agrees(other logFact) bool {
	if (f.kind == format.KindRequest) != (other.kind == format.KindRequest) {
		return f.term == other.term && f.remembered == other.remembered
	}
	return f == other
}

// replicaLog holds the content of one replica's log.
type replicaLog struct {
	shard  string
	facts  map[uint64]logFact
	newest map[int64]logFact // newest entry for each id
	last   uint64            // index of the last entry that was read
}

// compareReplicas stops the shards and compares the logs of each group's replicas. If two logs still have an entry at
// the same index, these entries must be equal. For every record, all replicas must have the same newest version, and it
// must be the one that the last reads returned.
func (s *store) compareReplicas(newest map[int64]uint64) (entries int, err error) {
	for _, h := range s.shards {
		if err := h.stop(); err != nil {
			return 0, err
		}
	}
	byGroup := map[string][]*replicaLog{}
	for _, h := range s.shards {
		dir := path.Join(h.machine.path(h.dir), "groups")
		folders, err := vfs.OS{}.List(dir)
		if err != nil {
			return 0, err
		}
		for _, folder := range folders {
			log, name, err := readLog(h.name, path.Join(dir, folder))
			if errors.Is(err, fs.ErrNotExist) {
				continue // the replica is still joining
			}
			if err != nil {
				return 0, fmt.Errorf("shard %s: %w", h.name, err)
			}
			byGroup[name] = append(byGroup[name], log)
			entries += len(log.facts)
		}
	}
	var errs []error
	for g := range s.cfg.groups {
		logs := byGroup[strconv.Itoa(g)]
		if len(logs) != copies {
			errs = append(errs, fmt.Errorf("group %d has %d copies on the volumes", g, len(logs)))
			continue
		}
		for _, other := range logs[1:] {
			errs = append(errs, findDifference(g, logs[0], other))
		}
		for _, log := range logs {
			errs = append(errs, log.checkNewest(g, newest))
		}
	}
	return entries, errors.Join(errs...)
}

// readLog reads the segments that the manifest lists. It handles truncations by leaders with its own code, and does not
// use the package that loads logs, because that package is under test.
func readLog(shard, dir string) (*replicaLog, string, error) {
	m, err := format.ReadManifest(vfs.OS{}, dir)
	if err != nil {
		return nil, "", err
	}
	log := &replicaLog{shard: shard, facts: map[uint64]logFact{}, newest: map[int64]logFact{}}
	for _, segment := range m.Segments {
		// Compaction may have removed every entry that this leader wrote, but its first index still shows which entries it
		// truncated.
		log.truncate(segment.FirstIndex)
		if err := log.read(path.Join(dir, format.SegmentName(segment.Number)), segment.ID); err != nil {
			return nil, "", err
		}
	}
	for _, f := range log.facts {
		if (f.kind == format.KindPut || f.kind == format.KindDelete) && f.index > log.newest[f.id].index {
			log.newest[f.id] = f
		}
	}
	return log, m.Identity.Name, nil
}

func (l *replicaLog) read(name string, id format.SegmentID) error {
	file, err := vfs.OS{}.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		return err
	}
	r := segio.NewFrameReader(file, id, format.SegmentHeaderBytes, size)
	for r.Next() {
		step := r.Step()
		switch step.Status {
		case segio.FrameZeros:
			continue
		case segio.FrameWhole:
		default:
			return fmt.Errorf("%s: offset %d: %v", name, step.Offset, step.Status)
		}
		e := step.Entry
		if e.Kind == format.KindState {
			continue
		}
		l.truncate(e.Index)
		l.last = e.Index
		f := logFact{
			index: e.Index, term: e.Term, kind: e.Kind, id: e.ID, data: crc32.ChecksumIEEE(e.Data), request: e.RequestID,
		}
		if e.Kind == format.KindPut || e.Kind == format.KindDelete || e.Kind == format.KindRequest {
			f.remembered = format.RequestOf(&e)
		}
		l.facts[e.Index] = f
	}
	return r.Err()
}

// truncate drops the entries from the given index on. They must be ignored, because a later leader has written other
// entries in their place.
func (l *replicaLog) truncate(from uint64) {
	for index := from; index <= l.last; index++ {
		delete(l.facts, index)
	}
	l.last = min(l.last, from-1)
}

// findDifference looks for an index at which two logs of a group have different entries, and returns an error that
// describes it.
func findDifference(g int, a, b *replicaLog) error {
	for index, f := range a.facts {
		if other, both := b.facts[index]; both && !f.agrees(other) {
			return fmt.Errorf("group %d, index %d: shard %s has %+v, shard %s has %+v", g, index, a.shard, f, b.shard, other)
		}
	}
	for _, pair := range [][2]*replicaLog{{a, b}, {b, a}} {
		for id, f := range pair[0].newest {
			if other := pair[1].newest[id]; f.kind == format.KindPut && other.index != f.index {
				return fmt.Errorf("group %d, record %d: shard %s has version %d, shard %s has version %d", g, id, pair[0].shard,
					f.index,
					pair[1].shard, other.index)
			}
		}
	}
	return nil
}

// checkNewest returns an error if the newest version of a record in the log is not the one that the last reads
// returned.
func (l *replicaLog) checkNewest(g int, newest map[int64]uint64) error {
	for id, f := range l.newest {
		version, read := newest[id]
		there := uint64(0)
		if f.kind == format.KindPut {
			there = f.index
		}
		switch {
		case id < 0: // written by a probe
		case !read:
			return fmt.Errorf("group %d on shard %s holds record %d, which nobody wrote", g, l.shard, id)
		case there != version:
			return fmt.Errorf("group %d on shard %s has version %d of record %d, the last read gave %d", g, l.shard, there, id,
				version)
		}
	}
	return nil
}

func TestFactsAgree(t *testing.T) {
	put := format.Request{ID: 1, Index: 7, CRC32C: 5}
	whole := logFact{index: 7, term: 2, kind: format.KindPut, id: 1, data: 5, remembered: put}
	left := whole
	left.kind, left.data = format.KindRequest, 9
	for name, c := range map[string]struct {
		change func(f *logFact)
		want   bool
	}{
		"of another write": {func(f *logFact) { f.remembered.CRC32C = 6 }, false},
		"of another term":  {func(f *logFact) { f.term = 3 }, false},
		"of the same":      {func(*logFact) {}, true},
	} {
		for what, f := range map[string]logFact{"what is remembered": left, "the write": whole} {
			c.change(&f)
			if whole.agrees(f) != c.want || f.agrees(whole) != c.want {
				t.Errorf("%s %s: want agreement %v", what, name, c.want)
			}
		}
	}
}

// In this log, a leader has truncated an entry of an earlier leader, and compaction has since removed everything that
// the leader wrote in its place. The truncated entry must still be ignored. The manifest shows which entries were
// truncated, because it holds the index at which the leader's segment begins.
func TestTruncatedEntriesStayIgnoredAfterCompaction(t *testing.T) {
	opts := group.Options{
		FS: vfs.OS{}, Dir: path.Join(t.TempDir(), "7"), Identity: format.Identity{Store: uuid.New(), Group: uuid.New(),
			Name: "7"}, SegmentBytes: 64 << 10,
	}
	must.OK(t, group.Create(opts, &raftpb.ConfState{Voters: []uint64{1}}))
	log, _, err := group.Load(t.Context(), opts, nil)
	must.OK(t, err)
	write := func(term uint64, e format.Entry, commit bool) {
		t.Helper()
		e.Term, e.CommitTime = term, int64(e.Index)
		must.OK(t, log.Append(&raftpb.HardState{Term: &term}, []*raftpb.Entry{format.RaftEntry(&e)}))
		must.OK(t, log.Sync())
		if commit {
			must.OK(t, log.Apply(e.Index, nil))
		}
	}
	write(1, format.Entry{Index: 1, Kind: format.KindPut, ID: 1, Data: []byte("first")}, true)
	write(1, format.Entry{Index: 2, Kind: format.KindPut, ID: -2, Data: []byte("void")}, false)
	must.OK(t, log.Seal())
	write(2, format.Entry{Index: 2, Kind: format.KindEmpty}, true)
	must.OK(t, log.Seal())
	write(2, format.Entry{Index: 3, Kind: format.KindPut, ID: 3, Data: []byte("third")}, true)
	for range 2 {
		_, err := log.Compact(t.Context(), group.CompactOptions{})
		must.OK(t, err)
	}
	must.OK(t, log.Close(false))
	got, _, err := readLog("a", opts.Dir)
	must.OK(t, err)
	if _, void := got.newest[-2]; void || got.newest[1].index != 1 || got.newest[3].index != 3 {
		t.Errorf("the newest versions are %+v", got.newest)
	}
}
