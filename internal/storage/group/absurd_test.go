package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// absurd lists numbers that no program writes into a field.
var absurd = []uint64{
	0, 1, 127, 1 << 20, format.NumberMax - 1, 1 << 31, 1 << 32, 1 << 40, format.NumberMax, math.MaxInt64 - 1,
	math.MaxInt64, 1 << 63, math.MaxUint64 - 1,
	math.MaxUint64,
}

// absurdFields contains, for each number in a manifest, a function that sets this number.
var absurdFields = map[string]func(m *format.Manifest, v uint64){
	"sequence":          func(m *format.Manifest, v uint64) { m.Sequence = v },
	"compacted through": func(m *format.Manifest, v uint64) { m.CompactedThrough = v },
	"compacted term":    func(m *format.Manifest, v uint64) { m.CompactedTerm = v },
	"tombstone floor":   func(m *format.Manifest, v uint64) { m.TombstoneFloor = v },
	"history floor":     func(m *format.Manifest, v uint64) { m.HistoryKnown, m.HistoryFloor = true, v },
	"conf index":        func(m *format.Manifest, v uint64) { m.ConfIndex = v },
	"accepted through":  func(m *format.Manifest, v uint64) { m.AcceptedThrough = v },
	"next segment":      func(m *format.Manifest, v uint64) { m.NextSegment = v },
	"term":              func(m *format.Manifest, v uint64) { m.HardState.Term = v },
	"commit":            func(m *format.Manifest, v uint64) { m.HardState.Commit = v },
	"synced offset":     func(m *format.Manifest, v uint64) { m.HardState.SyncedOffset = int64(v) },
	"synced index":      func(m *format.Manifest, v uint64) { m.HardState.SyncedIndex = v },
	"bytes":             func(m *format.Manifest, v uint64) { m.Segments[0].Bytes = int64(v) },
	"last index":        func(m *format.Manifest, v uint64) { m.Segments[0].LastIndex = v },
	"first index":       func(m *format.Manifest, v uint64) { m.Segments[0].FirstIndex = v },
	"active first":      func(m *format.Manifest, v uint64) { m.Segments[len(m.Segments)-1].FirstIndex = v },
	"number": func(m *format.Manifest, v uint64) {
		m.Segments[0].Number, m.NextSegment = v, max(m.NextSegment, v+1)
	},
	"voter": func(m *format.Manifest, v uint64) { m.Conf.Voters = []uint64{v} },
}

// TestAbsurdNumbersOfAGroup sets each number in a manifest or mark file to an absurd value, with a correct checksum.
// No operation may panic, run indefinitely, or take more memory than the sizes of the files justify. To ensure that,
// the log must compare each size that it reads from a file with the size of the file before it uses it. The test
// takes 6 s.
func TestAbsurdNumbersOfAGroup(t *testing.T) {
	mem := vfstest.NewMem()
	d := newDriver(t, driverOptions(mem, Index, 16<<10))
	d.fill(120, 300, payload)
	ok(t, d.log.Close(true))
	sound, err := format.ReadManifest(mem, d.opts.Dir)
	ok(t, err)
	if len(sound.Segments) < 2 {
		t.Fatalf("%d segments", len(sound.Segments))
	}
	const manyBytes = 96 << 20
	tried := 0
	try := func(t *testing.T, change func(disk *vfstest.Mem) error) {
		for _, residency := range []Residency{Index, Resident} {
			disk := mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
			if err := change(disk); err != nil {
				if !errors.Is(err, format.ErrCorrupt) {
					t.Errorf("it cannot be stored: %v", err)
				}
				return // a value that cannot be written would not be read either
			}
			tried++
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			opts := d.opts
			opts.FS, opts.Residency = disk, residency
			_, _ = PlanLoad(opts)
			_, _ = fsck.VerifyDir(context.Background(), disk, opts.Dir, nil)
			l, _, err := Load(context.Background(), opts, nil)
			if err == nil {
				use(l)
				_ = l.Close(true)
			}
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > manyBytes {
				t.Errorf("residency %v: %d MiB were allocated", residency, n>>20)
			}
		}
	}
	for name, set := range absurdFields {
		for _, v := range absurd {
			t.Run(fmt.Sprintf("%s=%#x", name, v), func(t *testing.T) {
				try(t, func(disk *vfstest.Mem) error {
					m, err := format.ReadManifest(disk, d.opts.Dir)
					if err != nil {
						return err
					}
					set(m, v)
					return format.WriteManifest(disk, d.opts.Dir, m)
				})
			})
		}
	}
	for _, v := range absurd {
		t.Run(fmt.Sprintf("mark=%#x", v), func(t *testing.T) {
			try(t, func(disk *vfstest.Mem) error {
				active, _ := sound.ActiveSegment()
				b := append(format.EncodeMark(format.Mark{Sequence: 100, Segment: active.ID, Offset: int64(v), Index: v}),
					format.EncodeMark(format.Mark{Sequence: math.MaxUint64, Segment: active.ID, Offset: int64(v &^ (1 << 63)),
						Index: v})...)
				return format.WriteReplace(disk, d.opts.Dir, format.MarkName, b)
			})
		})
	}
	if tried < 200 {
		t.Errorf("only %d folders were tried", tried)
	}
}

// use reads from a log and writes to it. It does not check the results.
func use(l *Log) {
	for id := range int64(8) {
		_, _ = l.Get(id, GetOptions{})
	}
	if last, err := l.LastIndex(); err == nil {
		_ = l.Apply(last, nil)
	}
	_ = l.Stats()
	_ = l.Sync()
	_ = l.Seal()
	_, _ = l.Compact(context.Background(), CompactOptions{})
}
