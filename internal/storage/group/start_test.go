package group

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// The tests in this file check which files a start opens and leaves behind, and which bytes it reads.

// opsSeen records the operations on a file system.
type opsSeen struct {
	mu  sync.Mutex
	ops []vfstest.Op // guarded by mu
}

// watchReads wraps the file system in a log's options with one that records all operations from now on.
func watchReads(t testing.TB, opts *Options) *opsSeen {
	t.Helper()
	seen := new(opsSeen)
	inner := opts.FS
	watched := vfstest.NewFaulty(inner)
	watched.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		seen.ops = append(seen.ops, op)
		return false
	}})
	opts.FS = watched
	t.Cleanup(func() { opts.FS = inner })
	return seen
}

// bytes returns how many bytes were requested from the files whose names begin with prefix.
func (s *opsSeen) bytes(prefix string) (sum int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range s.ops {
		if op.Kind == vfstest.OpRead && strings.HasPrefix(path.Base(op.Name), prefix) {
			sum += op.Length
		}
	}
	return sum
}

// transcript returns two lists of operations, without calls to Size and Stat. The first list has the operations on all
// files in order, except reads and syncs of files, because these run concurrently. The second list has each file's
// operations together, with the syncs last.
func (s *opsSeen) transcript(dir string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	byName := map[string][]string{}
	var out strings.Builder
	fmt.Fprintln(&out, "(in this order)")
	for _, op := range s.ops {
		if op.Kind == vfstest.OpSize || op.Kind == vfstest.OpStat {
			continue
		}
		if op.Kind != vfstest.OpRead && op.Kind != vfstest.OpSync {
			fmt.Fprintf(&out, "  %s\n", strings.TrimSuffix(strings.ReplaceAll(op.String(), dir+"/", ""), " "+dir))
		}
		name := strings.TrimPrefix(strings.TrimPrefix(op.Name, dir), "/")
		if byName[name] == nil {
			names = append(names, name)
		}
		byName[name] = append(byName[name], "  "+strings.ReplaceAll(op.String(), op.Name+" ", ""))
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintln(&out, cmp.Or(name, "(the folder)"))
		slices.SortStableFunc(byName[name], func(a, b string) int {
			return cmp.Compare(strings.Count(a, "sync"), strings.Count(b, "sync"))
		})
		for _, line := range byName[name] {
			fmt.Fprintf(&out, "%s\n", strings.TrimSuffix(line, " "+path.Join(dir, name)))
		}
	}
	return out.String()
}

// leftHow says how the previous process ended.
type leftHow string

const (
	killed  leftHow = "after a kill"
	cutOff  leftHow = "after a power cut"
	stopped leftHow = "after a stop"
)

// leave ends a log in the given way, and returns the disk that the next start finds.
func (d *logDriver) leave(how leftHow) vfs.FS {
	d.t.Helper()
	ok(d.t, d.log.Close(how == stopped))
	if disk, isMem := d.opts.FS.(*vfstest.Mem); isMem && how == cutOff {
		return disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	}
	return d.opts.FS
}

// TestAStartReadsNoUnusedSpace checks that a start reads a group's content once, and does not read the unused space
// after the content, however the previous process ended.
func TestAStartReadsNoUnusedSpace(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		for _, how := range []leftHow{killed, cutOff, stopped} {
			for _, marked := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, marked %v", how, marked), func(t *testing.T) {
					disk := vfstest.NewMem()
					disk.SetCheapOverwrite(true) // makes the log write zeros ahead
					d := newDriver(t, driverOptions(disk, residency, 64<<20))
					const records, size = 700, 10 << 10
					d.fill(records, size, random)
					if marked {
						ok(t, d.log.Tick())
					}
					stored := d.log.Stats().StoredBytes
					if info, err := disk.Stat(path.Join(d.opts.Dir, format.SegmentName(1))); err != nil || info.Size() < stored*6/5 {
						t.Fatalf("the file has %d bytes for %d stored: no room at its end, so this test tests nothing", info.Size(),
							stored)
					}
					d.opts.FS = d.leave(how)
					seen := watchReads(t, &d.opts)
					progress := new(Progress)
					l, _, err := Load(t.Context(), d.opts, progress)
					ok(t, err)
					d.log = l
					// The last commit index is not on disk, so the test applies the rest of the log itself.
					ok(t, d.log.Apply(d.last(), nil))
					defer func() { ok(t, d.log.Close(false)) }()
					most := stored * 105 / 100
					if !marked && how != stopped {
						// For the plan's estimate, some of the bytes above the mark are read a second time.
						most += stored/countShare + countPiecesMin*countPieceBytes
					}
					if residency == Index && how != cutOff {
						most = stored / 10 // the hint covers nearly everything, unless a power cut removed its unsynced part
					}
					if read := seen.bytes(""); read > most {
						t.Errorf("%d bytes were read, %d are stored", read, stored)
					}
					if done, total := progress.BytesDone.Load(), progress.BytesTotal.Load(); done > stored*105/100 ||
						total > stored*105/100 {
						t.Errorf("a progress of %d bytes of %d is told, %d are stored", done, total, stored)
					}
					ok(t, d.log.Tick())
					if info, err := d.opts.FS.Stat(path.Join(d.opts.Dir, format.SegmentName(1))); err != nil ||
						info.Size() > stored+4096 {
						t.Errorf("the file has %d bytes after the first tick, of which %d hold something: the room was not given back",
							info.Size(), stored)
					}
					d.wants(records-1, grouptest.RandomBytes(records-1, size))
					d.put(format.Entry{ID: 5, Data: []byte("goes on")})
					d.wants(5, []byte("goes on"))
				})
			}
		}
	})
}

// TestAStartLooksBehindTheEnd checks that a start finds data far after the apparent end of a log before it truncates
// anything. A state frame in that data shows that the bad bytes before it were synced.
func TestAStartLooksBehindTheEnd(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		disk := vfstest.NewMem()
		d := newDriver(t, driverOptions(disk, residency, 64<<20))
		const records, size = 300, 10 << 10
		d.fill(records, size, random)
		ok(t, d.log.Close(false))
		name := path.Join(d.opts.Dir, format.SegmentName(1))
		f, err := disk.OpenWrite(name)
		ok(t, err)
		// This simulates a device that has lost 1 MiB above the mark.
		_, err = f.WriteAt(make([]byte, 1<<20), 1<<20)
		ok(t, err)
		ok(t, f.Close())
		if residency == Index {
			// With the hint, the load would read none of these bytes.
			ok(t, disk.Remove(path.Join(d.opts.Dir, format.ActiveHintName)))
		}
		report := d.load()
		defer func() { ok(t, d.log.Close(false)) }()
		if report.Outcome != Damaged || report.TornTailBytes != 0 || len(report.Damages) != 2 ||
			report.Damages[1].IndexLast > 210 {
			t.Errorf("report %+v", report)
		}
		d.wants(records-2, grouptest.RandomBytes(records-2, size))
		var damaged *format.DamageError
		if _, err := d.get(0); !errors.As(err, &damaged) {
			t.Errorf("a record of which a newer version may be lost: %v", err)
		}
	})
}

// TestRestartsLeaveNoFiles checks that a process continues the active segment of the previous process, however that
// process ended, so that restarts do not add files.
func TestRestartsLeaveNoFiles(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		for _, how := range []leftHow{killed, cutOff, stopped} {
			for _, size := range []int{100, 400 << 10} { // a hint is written only if a segment has at least 256 KiB
				t.Run(fmt.Sprintf("%s, %d bytes each time", how, size), func(t *testing.T) {
					d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 256<<20))
					restarts := int64(100)
					if size > 100 {
						restarts = 30
					}
					for i := range restarts {
						d.put(format.Entry{ID: i, Data: grouptest.RandomBytes(uint64(i), size)})
						d.put(format.Entry{ID: i, Data: grouptest.RandomBytes(uint64(i+1000), size)})
						d.opts.FS = d.leave(how)
						names, err := d.opts.FS.List(d.opts.Dir)
						ok(t, err)
						if len(names) > 4 { // the only files are a segment, a hint, the manifest and the mark
							t.Fatalf("after start %d there are %v", i+1, names)
						}
						if report := d.load(); report.Outcome == Damaged {
							t.Fatalf("start %d: %+v", i+1, report)
						}
						ok(t, d.log.Apply(d.last(), nil))
					}
					defer func() { ok(t, d.log.Close(false)) }()
					for i := range restarts {
						d.wants(i, grouptest.RandomBytes(uint64(i+1000), size))
					}
					if stats := d.log.Stats(); stats.Segments != 1 {
						t.Errorf("%d segments", stats.Segments)
					}
				})
			}
		}
	})
}

var updateTranscripts = flag.Bool("update-transcripts", false, "write testdata/start anew; review the difference")

// TestTranscriptsOfAStart compares the operations of a start with golden transcripts, file by file, so that a changed
// operation appears as a difference.
func TestTranscriptsOfAStart(t *testing.T) {
	for _, residency := range []Residency{Index, Resident} {
		for _, how := range []leftHow{killed, stopped} {
			name := fmt.Sprintf("%s %s", map[Residency]string{Index: "index", Resident: "resident"}[residency], how)
			t.Run(name, func(t *testing.T) {
				disk := vfstest.NewMem()
				disk.SetCheapOverwrite(true)
				// A load reads a segment of this size with a single read.
				d := newDriver(t, driverOptions(disk, residency, 1<<20))
				// One segment is sealed, and the next one is active and has free space.
				d.fill(150, 10<<10, random)
				d.log.hints.writing.Wait()
				ok(t, d.log.Tick())
				d.leave(how)
				seen := watchReads(t, &d.opts)
				d.load()
				got := seen.transcript(d.opts.Dir)
				ok(t, d.log.Close(false))
				golden := filepath.Join("testdata", "start", strings.ReplaceAll(name, " ", "-")+".txt")
				if *updateTranscripts {
					ok(t, os.MkdirAll(filepath.Dir(golden), 0o755))
					ok(t, os.WriteFile(golden, []byte(got), 0o600))
				}
				want, err := os.ReadFile(golden)
				ok(t, err)
				if got != string(want) {
					t.Errorf("the operations of a start have changed; see the difference after -update-transcripts:\n%s", got)
				}
			})
		}
	}
}

// TestHintOfTheActiveSegment checks that the active segment's hint is used only if it is valid. Otherwise the load must
// read everything, and nothing may be lost.
func TestHintOfTheActiveSegment(t *testing.T) {
	const records, size = 100, 10 << 10
	fill := func(t *testing.T) *logDriver {
		d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<20))
		d.fill(records, size, random)
		return d
	}
	check := func(t *testing.T, d *logDriver) {
		t.Helper()
		ok(t, d.log.Apply(d.last(), nil))
		for id := range int64(records) {
			d.wants(id, grouptest.RandomBytes(uint64(id), size))
		}
		ok(t, d.log.Close(false))
	}
	for _, c := range []struct {
		what  string
		used  bool
		spoil func(t *testing.T, d *logDriver)
	}{
		{"as it was written", true, func(*testing.T, *logDriver) {}},
		{"gone", false, func(t *testing.T, d *logDriver) {
			ok(t, d.opts.FS.Remove(path.Join(d.opts.Dir, format.ActiveHintName)))
		}},
		{"a flipped bit", false, func(t *testing.T, d *logDriver) {
			f, err := d.opts.FS.OpenWrite(path.Join(d.opts.Dir, format.ActiveHintName))
			ok(t, err)
			ok(t, errors.Join(flip(f, 100), f.Close()))
		}},
		{"of another segment", false, func(t *testing.T, d *logDriver) {
			changePieces(t, d, func(p *format.HintPiece) { p.Segment[0]++ })
		}},
		{"of another first index", false, func(t *testing.T, d *logDriver) {
			changePieces(t, d, func(p *format.HintPiece) { p.First++ })
		}},
		{"that does not end at a state frame", false, func(t *testing.T, d *logDriver) {
			changePieces(t, d, func(p *format.HintPiece) {
				if p.Begin > format.SegmentHeaderBytes {
					p.Begin += 8
				}
				p.End += 8
			})
		}},
		{"that ends behind the data", false, func(t *testing.T, d *logDriver) {
			changePieces(t, d, func(p *format.HintPiece) {
				if p.Begin > format.SegmentHeaderBytes {
					p.Begin += 32 << 20
				}
				p.End += 32 << 20
			})
		}},
		{"of which the first piece is missing", false, func(t *testing.T, d *logDriver) {
			pieces := readTestPieces(t, d)
			writeTestPieces(t, d, pieces[1:])
		}},
		{"of which a piece in between is missing", false, func(t *testing.T, d *logDriver) {
			pieces := readTestPieces(t, d)
			writeTestPieces(t, d, append(pieces[:1], pieces[2:]...))
		}},
		{"of which the last piece is torn", true, func(t *testing.T, d *logDriver) {
			changeFile(t, d, func(b []byte) []byte { return b[:len(b)-100] })
		}},
		{"of which the last piece is zeros", true, func(t *testing.T, d *logDriver) {
			pieces := readTestPieces(t, d)
			changeFile(t, d, func(b []byte) []byte { clear(b[len(b)-len(pieces[len(pieces)-1].Encode()):]); return b })
		}},
		{"with something behind it", true, func(t *testing.T, d *logDriver) {
			changeFile(t, d, func(b []byte) []byte { return append(b, grouptest.RandomBytes(1, 10_000)...) })
		}},
		{"empty", false, func(t *testing.T, d *logDriver) { changeFile(t, d, func([]byte) []byte { return nil }) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			d := fill(t)
			ok(t, d.log.Close(true))
			c.spoil(t, d)
			seen := watchReads(t, &d.opts)
			if report := d.load(); report.Outcome != Loaded {
				t.Errorf("report %+v", report)
			}
			if used := seen.bytes(format.SegmentName(1)) < records*size*3/4; used != c.used {
				t.Errorf("%d bytes of the segment were read", seen.bytes(format.SegmentName(1)))
			}
			check(t, d)
		})
	}
	t.Run("the log goes on behind it", func(t *testing.T) {
		d := fill(t)
		for range 5 {
			ok(t, d.log.Close(true))
			d.load()
			ok(t, d.log.Apply(d.last(), nil))
			d.put(format.Entry{ID: 7, Data: []byte("another")}, format.Entry{ID: 8, Kind: format.KindDelete})
			d.put(format.Entry{ID: 7, Data: grouptest.RandomBytes(7, size)},
				format.Entry{ID: 8, Data: grouptest.RandomBytes(8, size)})
		}
		ok(t, d.log.Close(false))
		d.load()
		check(t, d)
	})
	t.Run("while the log is open", func(t *testing.T) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 256<<20))
		const large = 900 << 10
		d.fill(100, large, random)
		ok(t, d.log.Close(false))
		seen := watchReads(t, &d.opts)
		d.load()
		// The load reads the last batch, which is above the commit index on disk.
		if read := seen.bytes(format.SegmentName(1)); read > 4*large {
			t.Errorf("%d bytes of the segment were read", read)
		}
		ok(t, d.log.Apply(d.last(), nil))
		for id := range int64(100) {
			d.wants(id, grouptest.RandomBytes(uint64(id), large))
		}
		ok(t, d.log.Close(false))
	})
	t.Run("none over a membership change that the manifest does not know", func(t *testing.T) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<20))
		ok(t, d.log.Append(nil, []*raftpb.Entry{format.RaftEntry(&format.Entry{Kind: format.KindConf, Index: d.last() + 1,
			Term: 1, Data: []byte{0x12, 0x02, 0x10, 0x01}})}))
		ok(t, d.log.Sync())
		ok(t, d.log.Apply(d.last(), nil))
		d.fill(records, size, random)
		ok(t, d.log.Close(true))
		if _, err := d.opts.FS.Stat(path.Join(d.opts.Dir, format.ActiveHintName)); err == nil {
			t.Error("there is a hint")
		}
		d.load()
		if applied := d.log.AppliedIndex(); applied != 0 {
			t.Errorf("the load has applied up to %d, and so the change that the manifest does not know", applied)
		}
		ok(t, d.log.Close(false))
	})
	t.Run("none over entries that may be cut", func(t *testing.T) {
		d := fill(t)
		for id := range int64(records) {
			ok(t, d.append(format.Entry{ID: id, Data: []byte("never committed")}))
		}
		ok(t, d.log.Sync())
		ok(t, d.log.Close(true))
		pieces := readTestPieces(t, d)
		if last := pieces[len(pieces)-1].Last; last > records {
			t.Errorf("the hint tells of entries up to %d, applied were %d", last, records)
		}
		d.load()
		d.term++
		first := d.log.AppliedIndex() + 1
		commit := first
		vote := uint64(1)
		ok(t, d.log.Append(&raftpb.HardState{Term: &d.term, Vote: &vote, Commit: &commit},
			[]*raftpb.Entry{d.entry(first, format.Entry{ID: 1000, Data: []byte("cut")})}))
		ok(t, d.log.Sync())
		ok(t, d.log.Close(false))
		d.load()
		ok(t, d.log.Apply(d.last(), nil))
		d.wants(1000, []byte("cut"))
		check(t, d)
	})
}

// changeFile changes the file with the active segment's hint.
func changeFile(t *testing.T, d *logDriver, change func([]byte) []byte) {
	t.Helper()
	name := path.Join(d.opts.Dir, format.ActiveHintName)
	b, err := format.ReadAll(d.opts.FS, name, format.HintBytesMax)
	ok(t, err)
	ok(t, format.WriteReplace(d.opts.FS, d.opts.Dir, format.ActiveHintName, change(b)))
}

// readTestPieces reads the pieces of the active segment's hint.
func readTestPieces(t *testing.T, d *logDriver) (pieces []*format.HintPiece) {
	t.Helper()
	b, err := format.ReadAll(d.opts.FS, path.Join(d.opts.Dir, format.ActiveHintName), format.HintBytesMax)
	ok(t, err)
	for len(b) > 0 {
		p, length, err := format.DecodePiece(b)
		ok(t, err)
		pieces, b = append(pieces, p), b[length:]
	}
	return pieces
}

func writeTestPieces(t *testing.T, d *logDriver, pieces []*format.HintPiece) {
	t.Helper()
	changeFile(t, d, func([]byte) (b []byte) {
		for _, p := range pieces {
			b = append(b, p.Encode()...)
		}
		return b
	})
}

func changePieces(t *testing.T, d *logDriver, change func(*format.HintPiece)) {
	t.Helper()
	pieces := readTestPieces(t, d)
	for _, p := range pieces {
		change(p)
	}
	writeTestPieces(t, d, pieces)
}
