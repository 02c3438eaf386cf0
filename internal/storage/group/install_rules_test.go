package group

import (
	"bytes"
	"errors"
	"io"
	"path"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// exporter returns a log with several segments, which hold superseded versions, a delete and a blob. All entries are
// applied.
func exporter(t *testing.T) *logDriver {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 8<<10))
	for i := range int64(40) {
		d.put(format.Entry{ID: i % 17, Data: payload(i, 200)})
	}
	d.put(format.Entry{ID: 3, Kind: format.KindDelete})
	d.putBlob(20, payload(5, 3<<19))
	return d
}

func (d *logDriver) putBlob(id int64, data []byte) format.BlobRef {
	d.t.Helper()
	w, err := d.log.CreateBlob()
	ok(d.t, err)
	_, err = w.Write(data)
	ok(d.t, err)
	ref, err := w.Commit()
	ok(d.t, err)
	ok(d.t, w.Close())
	d.put(format.Entry{ID: id, Codec: format.CodecBlob, Data: ref.Encode()})
	return ref
}

func exported(t *testing.T, l *Log) *Export {
	t.Helper()
	e, err := l.Export(t.Context())
	ok(t, err)
	t.Cleanup(func() { ok(t, e.Close()) })
	return e
}

func begun(t *testing.T, e *Export, opts Options) *transfer.Install {
	t.Helper()
	i, err := transfer.NewInstall(t.Context(), opts.ForInstall(), joiner, e.Manifest())
	ok(t, err)
	return i
}

func loadedSame(t *testing.T, from *Log, opts Options) {
	t.Helper()
	l := mustLoad(t, opts)
	ok(t, sameLogs(from, l))
	ok(t, l.Close(false))
}

func TestExportNeitherBlocksNorIsBrokenByCompaction(t *testing.T) {
	d := exporter(t)
	e := exported(t, d.log)
	want := joinerOptions(d.opts, vfstest.NewMem())
	before := begun(t, e, want)
	ok(t, send(e, before, 1000))
	ok(t, before.Finish(t.Context()))
	first := mustLoad(t, want)

	d.put(format.Entry{ID: 20, Kind: format.KindDelete}) // this removes the blob
	for i := range int64(60) {
		d.put(format.Entry{ID: i % 17, Data: payload(i, 300)})
	}
	for range 2 {
		ok(t, d.log.Seal())
		report, err := d.log.Compact(t.Context(), CompactOptions{All: true})
		if err != nil || report.SegmentsRewritten == 0 {
			t.Fatal(report, err)
		}
	}
	after := joinerOptions(d.opts, vfstest.NewMem())
	i := begun(t, e, after)
	ok(t, send(e, i, 1000))
	ok(t, i.Finish(t.Context()))
	second := mustLoad(t, after)
	if err := sameLogs(first, second); err != nil {
		t.Error(err)
	}
	files := len(d.names())
	ok(t, e.Close())
	if left := len(d.names()); left >= files {
		t.Errorf("%d files after the export was closed, %d before", left, files)
	}
	if _, err := e.Open(e.files[0].Name, 0); !errors.Is(err, format.ErrClosed) {
		t.Error(err)
	}
}

func (d *logDriver) names() []string {
	names, err := d.opts.FS.List(d.opts.Dir)
	ok(d.t, err)
	return names
}

func TestExportWithAMembershipChangeThatIsNotInTheManifestYet(t *testing.T) {
	d := exporter(t)
	before := d.last()
	entry := raftpb.Entry{Type: raftpb.EntryConfChangeV2.Enum()}
	at, term := before+1, d.term
	entry.Index, entry.Term = &at, &term
	next := before + 2
	put := d.entry(next, format.Entry{ID: 1, Data: []byte("x")})
	ok(t, d.log.Append(nil, []*raftpb.Entry{&entry, put}))
	ok(t, d.log.Sync())
	ok(t, d.log.Apply(next, nil))
	if e := exported(t, d.log); e.Index != before {
		t.Errorf("the export is as of %d, the membership is known as of %d", e.Index, before)
	}
	if s, err := d.log.Snapshot(); err != nil || s.GetMetadata().GetIndex() != before {
		t.Error(s, err)
	}
	ok(t, d.log.SetConf(&raftpb.ConfState{Voters: []uint64{1, 3}, AutoLeave: new(bool)}, at))
	s, err := d.log.Snapshot()
	if err != nil || s.GetMetadata().GetIndex() != next || len(s.GetMetadata().GetConfState().GetVoters()) != 2 ||
		len(s.Data) > 0 {
		t.Error(s, err)
	}
	opts := joinerOptions(d.opts, vfstest.NewMem())
	ok(t, install(d.log, opts))
	loadedSame(t, d.log, opts)
}

func TestInstallGoesOnWhereItWas(t *testing.T) {
	d := exporter(t)
	opts := joinerOptions(d.opts, vfstest.NewMem())
	e := exported(t, d.log)
	i := begun(t, e, opts)
	files := i.Missing()
	ok(t, sendFile(e, i, files[0], 500))
	// The install receives half of the second file, which ends inside a frame.
	r, err := e.Open(files[1].Name, 0)
	ok(t, err)
	w, err := i.File(files[1])
	ok(t, err)
	_, err = io.CopyN(w, r, files[1].Bytes/2+3)
	ok(t, err)
	if err := w.Commit(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	ok(t, errors.Join(w.Close(), r.Close()))

	// The exporter appends entries and creates a new export. The last segment of this export is longer than that of the
	// first one.
	d.put(format.Entry{ID: 9, Data: payload(9, 100)})
	newer := exported(t, d.log)
	i = begun(t, newer, opts)
	missing := i.Missing()
	if len(missing) != len(files)-1 || missing[0].Have < files[1].Bytes/4 || missing[0].Have%8 != 0 {
		t.Fatalf("%+v is missing", missing)
	}
	ok(t, send(newer, i, 500))
	ok(t, i.Finish(t.Context()))
	loadedSame(t, d.log, opts)
	// A second attempt finds that everything is installed already.
	i = begun(t, newer, opts)
	if missing := i.Missing(); missing != nil {
		t.Error(missing)
	}
	ok(t, i.Finish(t.Context()))
	loadedSame(t, d.log, opts)
}

func TestInstallResumesABlob(t *testing.T) {
	d := exporter(t)
	opts := joinerOptions(d.opts, vfstest.NewMem())
	e := exported(t, d.log)
	i := begun(t, e, opts)
	for _, f := range i.Missing() {
		ok(t, sendFile(e, i, f, 5000))
	}
	blob := i.Missing()
	if len(blob) != 1 || blob[0].Kind != transfer.BlobFile {
		t.Fatal(blob)
	}
	r, err := e.Open(blob[0].Name, 0)
	ok(t, err)
	w, err := i.File(blob[0])
	ok(t, err)
	_, err = io.CopyN(w, r, blob[0].Bytes-10)
	ok(t, errors.Join(err, w.Close(), r.Close()))
	if err := i.Finish(t.Context()); err == nil {
		t.Fatal("an install without a blob came to its end")
	}
	i = begun(t, e, opts)
	blob = i.Missing()
	if len(blob) != 1 || blob[0].Have < format.BlobChunkBytes {
		t.Fatal(blob)
	}
	ok(t, send(e, i, 5000))
	ok(t, i.Finish(t.Context()))
	loadedSame(t, d.log, opts)
}

func TestInstallRefusesEveryBadByte(t *testing.T) {
	d := exporter(t)
	opts := joinerOptions(d.opts, vfstest.NewMem())
	e := exported(t, d.log)
	i := begun(t, e, opts)
	for files := i.Missing(); len(files) > 0; files = i.Missing() {
		f := files[0]
		r, err := e.Open(f.Name, 0)
		ok(t, err)
		good, err := io.ReadAll(r)
		ok(t, errors.Join(err, r.Close()))
		step := 97
		if f.Kind == transfer.BlobFile {
			step = 200_003
		}
		for at := 0; at < len(good); at += step {
			bad := bytes.Clone(good)
			bad[at] ^= 1 << (at % 8)
			w, err := i.File(f)
			ok(t, err)
			_, err = w.Write(bad)
			ok(t, err)
			// The checksum of a frame also covers its used byte.
			if err := w.Commit(); !errors.Is(err, format.ErrCorrupt) {
				t.Fatalf("%s byte %d: %v", f.Name, at, err)
			}
			ok(t, w.Close())
			if again := i.Missing(); again[0] != f {
				t.Fatalf("%s byte %d: then %+v is missing", f.Name, at, again)
			}
		}
		ok(t, sendFile(e, i, f, 1<<20))
	}
	ok(t, i.Finish(t.Context()))
	loadedSame(t, d.log, opts)
}

func TestInstallOnAFullDiskLosesNothing(t *testing.T) {
	d := exporter(t)
	disk := vfstest.NewMem()
	opts := joinerOptions(d.opts, disk)
	ok(t, install(d.log, opts))
	l := mustLoad(t, opts)
	at := l.AppliedIndex()
	ok(t, l.Close(false))
	for i := range int64(60) {
		d.put(format.Entry{ID: i % 17, Data: payload(i, 200)})
	}
	used := used(t, disk)
	refused := 0
	for extra := int64(0); ; extra += 3000 {
		disk.SetCapacity(used + extra)
		err := install(d.log, opts)
		if err == nil {
			break
		}
		if !errors.Is(err, format.ErrNoSpace) {
			t.Fatalf("%d bytes free: %v", extra, err)
		}
		refused++
		l, report, err := Load(t.Context(), opts, nil)
		if err != nil || report.Outcome != Loaded || l.AppliedIndex() != at {
			t.Fatalf("%d bytes free: %+v, %v", extra, report, err)
		}
		ok(t, l.Close(false))
	}
	if refused < 3 {
		t.Errorf("the disk was full %d times", refused)
	}
	loadedSame(t, d.log, opts)
}

func used(t *testing.T, fs *vfstest.Mem) int64 {
	t.Helper()
	fs.SetCapacity(1 << 40)
	s, err := fs.Space("/")
	ok(t, err)
	return s.TotalBytes - s.FreeBytes
}

// TestInstallNeverLosesWhatWasAcknowledged attempts an install over the log of a replica that has the export's last
// entry and also later entries, which the replica has acknowledged to a leader.
func TestInstallNeverLosesWhatWasAcknowledged(t *testing.T) {
	d := exporter(t)
	opts := joinerOptions(d.opts, vfstest.NewMem())
	ok(t, install(d.log, opts))
	began := d.last()
	d.put(format.Entry{ID: 1, Data: []byte("a")}, format.Entry{ID: 2, Data: []byte("b")})
	e := exported(t, d.log)
	grow := func(term, commit uint64, entries ...*raftpb.Entry) {
		l := mustLoad(t, opts)
		vote := uint64(2)
		ok(t, l.Append(&raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}, entries))
		ok(t, l.Sync())
		ok(t, l.Close(false))
	}
	last := d.last()
	tail, err := d.log.Entries(began+1, last+1, 1<<40)
	ok(t, err)
	grow(1, began, append(tail, d.entry(last+1, format.Entry{ID: 1, Data: []byte("acknowledged")}))...)
	refused := func(what string) {
		t.Helper()
		i, err := transfer.NewInstall(t.Context(), opts.ForInstall(), joiner, e.Manifest())
		if err == nil {
			err = errors.Join(send(e, i, 1000), i.Finish(t.Context()))
		}
		if !errors.Is(err, transfer.ErrBehind) {
			t.Errorf("%s: %v", what, err)
		}
		l, report, err := Load(t.Context(), opts, nil)
		if err != nil || report.Outcome != Loaded {
			t.Fatal(report, err)
		}
		if got, _ := l.LastIndex(); got != last+1 {
			t.Errorf("%s: last index is %d", what, got)
		}
		ok(t, sealAndClose(l)) // seals all segments, so that the next install uses hints
	}
	refused("in the active segment")
	refused("in a sealed segment")
	grow(1, last+1)
	refused("committed")
}

// TestInstallOverAnotherBranch checks that a deposed leader's entries do not prevent an install, however many there
// are, because they are void.
func TestInstallOverAnotherBranch(t *testing.T) {
	d := exporter(t)
	opts := joinerOptions(d.opts, vfstest.NewMem())
	ok(t, install(d.log, opts))
	l := mustLoad(t, opts)
	at := l.AppliedIndex()
	other := &logDriver{t: t, opts: opts, log: l, term: 2}
	for range 5 {
		ok(t, other.append(format.Entry{ID: 4, Data: []byte("of a leader that lost")}))
	}
	ok(t, l.Sync())
	ok(t, l.Close(false))
	d.term = 3
	d.put(format.Entry{ID: 4, Data: []byte("of the one that won")}, format.Entry{ID: 5, Data: []byte("too")})
	if d.last() >= at+5 {
		t.Fatal("the other branch is not the longer one")
	}
	ok(t, install(d.log, opts))
	loadedSame(t, d.log, opts)
}

func TestInstallOfAnotherReplicaOrGroupIsRefused(t *testing.T) {
	d := exporter(t)
	e := exported(t, d.log)
	opts := joinerOptions(d.opts, vfstest.NewMem())
	ok(t, install(d.log, opts))
	for _, change := range []func(*format.ReplicaFile){
		func(f *format.ReplicaFile) { f.RaftID = 5 },
		func(f *format.ReplicaFile) { f.Volume[3]++ },
	} {
		f := joiner
		change(&f)
		if _, err := transfer.NewInstall(t.Context(), opts.ForInstall(), f, e.Manifest()); !errors.Is(err,
			format.ErrForeign) {
			t.Error(err)
		}
	}
	foreign := joinerOptions(opts, vfstest.NewMem())
	foreign.Identity.Group[0]++
	if _, err := transfer.NewInstall(t.Context(), foreign.ForInstall(), joiner, e.Manifest()); !errors.Is(err,
		format.ErrForeign) {
		t.Error(err)
	}
	if _, err := transfer.NewInstall(t.Context(), opts.ForInstall(), joiner, e.Manifest()[:100]); !errors.Is(err,
		format.ErrCorrupt) {
		t.Error(err)
	}
	own, err := d.log.folder.manifest.Encode()
	ok(t, err)
	if _, err := transfer.NewInstall(t.Context(), opts.ForInstall(), joiner, own); !errors.Is(err, format.ErrCorrupt) {
		t.Errorf("a manifest with an active segment: %v", err)
	}
	// A replica without its manifest does not know how it has voted.
	ok(t, opts.FS.Remove(path.Join(opts.Dir, format.ManifestName)))
	if _, err := transfer.NewInstall(t.Context(), opts.ForInstall(), joiner, e.Manifest()); !errors.Is(err,
		transfer.ErrBehind) {
		t.Error(err)
	}
}

func TestInstallWhereAVoteMayBeForgotten(t *testing.T) {
	d := exporter(t)
	mem := vfstest.NewMem()
	opts := joinerOptions(d.opts, mem)
	ok(t, install(d.log, opts))
	l := mustLoad(t, opts)
	term, vote, commit := uint64(4), uint64(2), l.AppliedIndex()
	ok(t, l.Append(&raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}, nil))
	ok(t, l.Sync())
	ok(t, l.Tick())
	name := l.w.active.path
	ok(t, l.Close(false))
	d.put(format.Entry{ID: 1, Data: []byte("newer")})
	f, err := mem.OpenWrite(name)
	ok(t, err)
	_, err = f.WriteAt([]byte("bad"), format.SegmentHeaderBytes+20)
	ok(t, errors.Join(err, f.Close()))
	if err := install(d.log, opts); !errors.Is(err, transfer.ErrBehind) || !strings.Contains(err.Error(), "voted") {
		t.Error(err)
	}
}

// TestInstallOverADamagedLogThatHasTheExport installs over a log that already has the export's segments but was
// refused by a load, because its active segment is damaged. Such a log does not count as installed. The install must
// return ErrBehind, because the bad bytes may have held a vote. If the segment's header is damaged, the install
// notices this even without the mark file. If the segment was truncated after its header, only the mark shows that
// synced bytes are missing.
func TestInstallOverADamagedLogThatHasTheExport(t *testing.T) {
	for what, damage := range map[string]struct {
		marks bool
		bytes int64
	}{"the header": {bytes: format.SegmentHeaderBytes / 2}, "a vote": {marks: true, bytes: format.SegmentHeaderBytes}} {
		d := exporter(t)
		ok(t, d.log.SetConf(&raftpb.ConfState{Voters: []uint64{1, 2, 3}}, d.last()))
		mem := vfstest.NewMem()
		opts := joinerOptions(d.opts, mem)
		ok(t, install(d.log, opts))
		l := mustLoad(t, opts)
		commit := l.AppliedIndex()
		ok(t, l.Append(&raftpb.HardState{Term: new(d.term + 1), Vote: new(uint64(2)), Commit: &commit}, nil))
		ok(t, l.Sync())
		if damage.marks {
			ok(t, l.Tick())
		}
		name := l.w.active.path
		mem = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
		ok(t, l.Close(false))
		opts.FS = mem
		f, err := mem.OpenWrite(name)
		ok(t, err)
		ok(t, errors.Join(f.Truncate(damage.bytes), f.Sync(), f.Close()))
		if _, _, err := Load(t.Context(), opts, nil); !errors.Is(err, ErrTailDamaged) {
			t.Errorf("%s: the load: %v", what, err)
		}
		e := exported(t, d.log)
		damaged := opts.ForInstall()
		damaged.Damaged = true
		i, err := transfer.NewInstall(t.Context(), damaged, joiner, e.Manifest())
		ok(t, err)
		ok(t, send(e, i, 700))
		if err := i.Finish(t.Context()); !errors.Is(err, transfer.ErrBehind) || !strings.Contains(err.Error(), "voted") {
			t.Errorf("%s: the install: %v", what, err)
		}
	}
}

func TestALoadRemovesWhatWasGatheredForNothing(t *testing.T) {
	d := exporter(t)
	opts := joinerOptions(d.opts, vfstest.NewMem())
	ok(t, install(d.log, opts))
	d.put(format.Entry{ID: 1, Data: []byte("newer")})
	e := exported(t, d.log)
	i := begun(t, e, opts)
	ok(t, sendFile(e, i, i.Missing()[0], 1000))
	gathered := func() int {
		names, _ := opts.FS.List(path.Join(opts.Dir, format.IncomingName))
		return len(names)
	}
	l := mustLoad(t, opts)
	if gathered() == 0 {
		t.Error("what the next try needs is gone")
	}
	entries, err := d.log.Entries(l.AppliedIndex()+1, d.last()+1, 1<<40)
	ok(t, err)
	commit := d.last()
	// This time, the replica has received the missing entries from a leader.
	ok(t, l.Append(&raftpb.HardState{Term: &d.term, Commit: &commit}, entries))
	ok(t, l.Sync())
	ok(t, l.Close(false))
	l, _, err = Load(t.Context(), opts, nil)
	ok(t, err)
	if gathered() > 0 {
		t.Error("what nobody needs is still there")
	}
	ok(t, l.Close(false))
}
