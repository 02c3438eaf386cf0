package shard

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// afterAPowerCut simulates a power cut after which some acknowledged writes exist only in the journal. It returns the
// fixture of the killed shard, the disk as the power cut left it, and the acknowledged writes.
func afterAPowerCut(t testing.TB) (f *fixture, after *vfstest.Mem, there map[int64][]byte) {
	t.Helper()
	disk := vfstest.NewMem()
	f = start(t, newRegistry(many, "s1"), sharing(disk)).ready()
	there = f.putAll(0, 1000, func() { after = disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}) })
	f.shard.Kill()
	found, err := journal.Read(after, "/v")
	if err != nil || len(found.Ranges) < 100 {
		t.Fatalf("the journal holds %d writes, %v: the test does not test", len(found.Ranges), err)
	}
	return f, after, there
}

// servedOrRefused returns how many of the given records are served with their acknowledged data, and how many are
// refused with an error. No record may be reported as never written.
func (f *fixture) servedOrRefused(there map[int64][]byte) (served, refused int) {
	f.t.Helper()
	for id, d := range there {
		r, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
		switch {
		case err == nil && string(r.GetRecord().GetData()) == string(d):
			served++
		case status.Code(err) == codes.DataLoss || reasonOf(err) == reason.GroupFailed:
			refused++
		default:
			f.t.Errorf("record %d: %d bytes, %v", id, len(r.GetRecord().GetData()), err)
		}
	}
	return served, refused
}

func isJournal(op vfstest.Op) bool { return strings.HasPrefix(path.Base(op.Name), "journal-") }

// TestAJournalThatCannotBeReadLosesNothingInSilence covers a power cut after which acknowledged writes exist only in
// the journal, while the disk fails to read the journal.
func TestAJournalThatCannotBeReadLosesNothingInSilence(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: one fault after another, each with a start")
	}
	inBubble(t, func(t *bubble) {
		const block = 4096
		reads := func(from, to int64) func(op vfstest.Op) bool {
			return func(op vfstest.Op) bool {
				return op.Kind == vfstest.OpRead && isJournal(op) && op.Offset < to && from < op.Offset+op.Length
			}
		}
		t.Run("not at all", func(t *bubble) {
			f, after, there := afterAPowerCut(t)
			faulty := vfstest.NewFaulty(after)
			fault := faulty.Add(&vfstest.Fault{Match: reads(0, 1<<40)})
			f.cfg.FS = faulty
			if _, err := Start(f.ctx(), f.cfg); !errors.Is(err, syscall.EIO) || fault.Fired() == 0 {
				t.Fatalf("started, or for another reason: %v; %d faults", err, fault.Fired())
			}
			fault.Remove() // the device responds again
			f.again(nil)
			f.ready()
			if served, _ := f.servedOrRefused(there); served != len(there) {
				t.Errorf("%d of %d are served", served, len(there))
			}
		})
		t.Run("for a moment", func(t *bubble) {
			f, after, there := afterAPowerCut(t)
			faulty := vfstest.NewFaulty(after)
			fault := faulty.Add(&vfstest.Fault{Match: reads(0, 1<<40), Count: 2})
			f.again(func(c *Config) { c.FS = faulty })
			f.ready()
			if served, _ := f.servedOrRefused(there); served != len(there) || fault.Fired() == 0 {
				t.Errorf("%d of %d are served; %d faults", served, len(there), fault.Fired())
			}
		})
		for name, c := range map[string]struct {
			bad     func(needed int64) (from, to int64) // needed is the offset of a record with data that no segment has
			refused bool                                // at least one record must be refused
		}{
			"its first block":            {func(int64) (int64, int64) { return 0, block }, false},
			"a block in the middle":      {func(needed int64) (int64, int64) { return needed, needed + 1 }, true},
			"some blocks in the middle":  {func(needed int64) (int64, int64) { return needed, needed + 10*block }, true},
			"all but the first ones":     {func(needed int64) (int64, int64) { return needed, 1 << 40 }, true},
			"the first ones":             {func(needed int64) (int64, int64) { return 0, needed + 1 }, true},
			"a block that was not used ": {func(int64) (int64, int64) { return 1 << 20, 1<<20 + block }, false},
		} {
			t.Run(name, func(t *bubble) {
				f, after, there := afterAPowerCut(t)
				faulty := vfstest.NewFaulty(after)
				from, to := c.bad(neededRecord(t, after, "/v/journal-1"))
				fault := faulty.Add(&vfstest.Fault{Match: reads(from, to)})
				f.again(func(c *Config) { c.FS = faulty })
				f.ready()
				served, refused := f.servedOrRefused(there)
				t.Logf("%d served, %d refused; %d faults", served, refused, fault.Fired())
				if c.refused && refused == 0 {
					t.Error("nothing is refused")
				}
				if st := f.shard.Status(); c.refused && (len(st.GetShard().Problems) == 0 ||
					!strings.Contains(strings.Join(st.GetShard().Problems, "\n"), "journal-damaged-1")) {
					t.Errorf("problems: %q", st.GetShard().Problems)
				}
				fault.Remove()
				f.shard.Kill()
				f.again(nil) // refused records remain refused, because the shard has moved the damaged journal away
				f.ready()
				if again, _ := f.servedOrRefused(there); again != served {
					t.Errorf("%d are served after the next start, %d before", again, served)
				}
			})
		}
	})
}

// neededRecord examines all records in a journal file except the last one. It returns the offset of the record with the
// most bytes that are missing from the segments.
func neededRecord(t testing.TB, disk *vfstest.Mem, name string) (offset int64) {
	t.Helper()
	var said bytes.Buffer
	must(t, journal.Dump(&said, disk, name))
	needed, most := int64(0), int64(0) // number of bytes that the segments lack: of the current record, and the maximum
	var at int64
	for line := range strings.Lines(said.String()) {
		var g, segment string
		var sequence, number, from, length int64
		if n, _ := fmt.Sscanf(strings.ReplaceAll(line, ",", " "), " group %s segment %d %s offset %d %d bytes", &g, &number,
			&segment, &from, &length); n == 5 {
			if !isWritten(t, disk, path.Join("/v/groups", g, format.SegmentName(uint64(number))), from, length) {
				needed += length
			}
			continue
		}
		if needed > most {
			most, offset = needed, at
		}
		needed = 0
		_, _ = fmt.Sscanf(line, "record %d at offset %d, %d bytes", &sequence, &at, &length)
	}
	if most == 0 {
		t.Fatalf("the test does not test: %s", said.String())
	}
	return offset
}

// isWritten reports whether a part of a file exists and is not all zeros.
func isWritten(t testing.TB, disk *vfstest.Mem, name string, offset, length int64) bool {
	t.Helper()
	f, err := disk.Open(name)
	must(t, err)
	defer f.Close()
	b := make([]byte, length)
	n, err := f.ReadAt(b, offset)
	return err == nil && len(bytes.Trim(b[:n], "\x00")) > 0
}

// TestABadBitInTheJournalHitsWhatStoodThere damages one record of the journal that is followed by intact records.
// Only the groups with data in the damaged record may be affected.
func TestABadBitInTheJournalHitsWhatStoodThere(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f, after, there := afterAPowerCut(t)
		if !after.Rot("/v/journal-1", neededRecord(t, after, "/v/journal-1")+100, 1, func(b []byte) { b[0] ^= 4 }) {
			t.Fatal("no rot")
		}
		found, err := journal.Read(after, "/v")
		if err != nil || found.Doubtful() || len(found.Lost) == 0 {
			t.Fatalf("found %v, lost %v, %v", found.Bad, found.Lost, err)
		}
		hit := map[string]bool{}
		for i := range found.Lost {
			hit[found.Lost[i].Group.String()] = true
		}
		f.again(func(c *Config) { c.FS = after })
		f.ready()
		served, refused := f.servedOrRefused(there)
		t.Logf("%d served, %d refused", served, refused)
		damaged := 0
		for _, g := range f.shard.Status().Groups {
			if len(g.Damages) > 0 {
				damaged++
				if !hit[g.Uuid] {
					t.Errorf("group %s is damaged, which the bad record did not touch", g.Group)
				}
			}
		}
		if refused == 0 || damaged == 0 {
			t.Errorf("%d groups are damaged, %d records refused", damaged, refused)
		}
	})
}

// TestAGroupThatCannotBeReadKeepsItsPartOfTheJournal checks that a shard starts even if it cannot read the manifest
// of a group, or cannot write the group's segment. The group does not serve then. The shard keeps the group's part of
// the journal, and writes it to the group's segments as soon as that is possible.
func TestAGroupThatCannotBeReadKeepsItsPartOfTheJournal(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		for name, kind := range map[string]vfstest.OpKind{"its manifest cannot be read": vfstest.OpRead,
			"its segment cannot be written": vfstest.OpWrite} {
			t.Run(name, func(t *bubble) {
				f, after, there := afterAPowerCut(t)
				var bad string
				found, err := journal.Read(after, "/v")
				must(t, err)
				bad = found.Ranges[0].Group.String()
				faulty := vfstest.NewFaulty(after)
				fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
					file := path.Base(op.Name)
					return op.Kind == kind && path.Base(path.Dir(op.Name)) == bad &&
						(file == "manifest" || strings.HasPrefix(file, "segment-"))
				}})
				f.again(func(c *Config) { c.FS = faulty })
				served, refused := f.servedOrRefused(there)
				if fault.Fired() == 0 || served == 0 || refused == 0 {
					t.Fatalf("%d served, %d refused; %d faults", served, refused, fault.Fired())
				}
				if st := f.shard.Status(); !strings.Contains(strings.Join(st.GetShard().Problems, "\n"), "journal") {
					t.Errorf("problems: %q", st.GetShard().Problems)
				}
				fault.Remove()
				f.shard.Kill()
				f.again(nil)
				f.ready()
				if served, _ := f.servedOrRefused(there); served != len(there) {
					t.Errorf("%d of %d are served", served, len(there))
				}
				if st := f.shard.Status(); len(st.GetShard().Problems) > 0 {
					t.Errorf("problems: %q", st.GetShard().Problems)
				}
			})
		}
	})
}
