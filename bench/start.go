package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// The start benchmark measures the starts that users see: after a kill, after a power cut with a full journal, after
// a normal stop, and with many small groups. Each start is measured with cold caches on each file system. It is
// compared with three other ways to read the same bytes: from separate files, from a plain composite file, and with a
// raw read.

const (
	startSmallBytes  = 256 << 10 // size of a small active segment
	startSmallGroups = 256       // maximum number of groups in the dataset with small active segments
	// aheadBytesMin is the minimum space that a process allocates beyond the end of an active segment, before it needs
	// the space.
	aheadBytesMin = 1 << 18
	aheadBytesMax = 1 << 24
	journalPuts   = 600
)

// zerosShare determines, for each residency, how many zeros are written ahead in an active segment: at most the
// segment's size divided by this number.
var zerosShare = map[group.Residency]int64{group.Resident: 32, group.Index: 256}

// startCase is a record size together with a residency.
type startCase struct {
	size      int
	residency group.Residency
}

var startCases = []startCase{{10 << 10, group.Resident}, {10 << 10, group.Index}, {1 << 10, group.Resident},
	{1 << 10, group.Index}}

// starts measures starts on the file system of the folder, or on each requested file system.
func (b *loadBench) starts(ctx context.Context) error {
	if len(b.opts.FileSystems) == 0 {
		return b.startsOn(ctx, b.dir, "", func(ctx context.Context) error { return layouts.Evict(ctx, b.dir, true) })
	}
	files := int(2*b.opts.StartBytes/(1<<10)) + 1<<14
	for _, fs := range b.opts.FileSystems {
		err := layouts.OnLoop(ctx, fs, b.dir, 1<<30+14*b.opts.StartBytes, files,
			func(dir string, cold func(context.Context) error) error {
				return b.startsOn(ctx, dir, fs+", ", cold)
			})
		switch {
		case errors.Is(err, layouts.ErrNotHere):
			b.Say("%s is not measured: %v", fs, err)
		case err != nil:
			return fmt.Errorf("%s: %w", fs, err)
		}
	}
	return nil
}

func (b *loadBench) startsOn(ctx context.Context, dir, prefix string, cold func(context.Context) error) error {
	for _, c := range startCases {
		s := &startBench{loadBench: b, startCase: c, cold: cold, dir: filepath.Join(dir,
			strconv.Itoa(c.size)+c.residency.String())}
		s.what = fmt.Sprintf("%s%s, %d KB", prefix, c.residency, c.size>>10)
		err := s.measure(ctx)
		if err = errors.Join(err, os.RemoveAll(s.dir)); err != nil {
			return err
		}
	}
	return nil
}

// startBench measures one case on one file system.
type startBench struct {
	*loadBench
	startCase
	dir, what string
	cold      func(context.Context) error
}

// These are the metrics of a start, in addition to rounds.Rate.
const (
	secondsPerGB = "s/GB"
	heldBytes    = "held"    // bytes in frames and hints, which is what the groups hold on disk
	readBytes    = "read"    // bytes read from the device
	touchedBytes = "touched" // growth of the process's anonymous memory in bytes
	countedBytes = "counted" // memory that the groups report as used, in bytes
)

func (s *startBench) measure(ctx context.Context) error {
	records := s.opts.StartBytes / int64(s.size)
	datasets := map[string]*dataset{}
	for name, d := range map[string]struct {
		groups       int
		open, killed bool
	}{
		"stop": {groupCount, true, false}, "kill": {groupCount, true, true}, "journal": {groupCount, true, true},
		"sealed": {groupCount, false, false},
		"small":  {s.smallGroups(), true, true}, "small sealed": {s.smallGroups(), false, false},
	} {
		one := &dataset{dir: filepath.Join(s.dir, strings.ReplaceAll(name, " ", "-")), size: s.size, open: d.open,
			killed: d.killed}
		one.grows = name == "journal"
		_, err := one.fill(ctx, d.groups, records, s.Say)
		if err != nil {
			return err
		}
		datasets[name] = one
	}
	ownSyncs := *datasets["small"] // only this variable is copied; both datasets have the same files
	ownSyncs.ownSyncs = true
	datasets["small, own syncs"] = &ownSyncs
	loaders := newLoaders()
	defer loaders.close()
	start := func(name, as string, loader func() *segio.Loader, before func(*dataset) error) rounds.Cell {
		return s.start(datasets[name], as, loader, before)
	}
	allocateAhead := func(d *dataset) error { return d.allocateAhead(s.residency) }
	cells := []rounds.Cell{
		start("stop", "stop", loaders.freshLoader, nil),
		start("kill", "kill", loaders.freshLoader, allocateAhead),
		start("journal", "journal", loaders.freshLoader, func(d *dataset) error { return d.writeAndKill(ctx) }),
		start("sealed", "sealed", loaders.freshLoader, nil),
		start("small", "small", loaders.freshLoader, allocateAhead),
		start("small, own syncs", "small, own syncs", loaders.freshLoader, allocateAhead),
		start("small sealed", "small sealed", loaders.freshLoader, nil),
	}
	if s.residency == group.Resident {
		touched := loaders.touchedLoader
		cells = append(cells, start("stop", "stop, touched", touched, nil),
			start("kill", "kill, touched", touched, allocateAhead))
		more, err := s.otherWays(ctx, datasets["sealed"], records)
		if err != nil {
			return err
		}
		cells = append(cells, more...)
	}
	got, err := s.takeTurns(ctx, cells...)
	if err != nil {
		return err
	}
	s.addRows(got)
	return nil
}

// smallGroups returns the number of groups that have a small active segment each.
func (s *startBench) smallGroups() int {
	return int(max(2, min(startSmallGroups, s.opts.StartBytes/startSmallBytes)))
}

// start creates a cell that measures one start: it loads the dataset with a cold page cache and computes bytes per
// second.
func (s *startBench) start(
	d *dataset, as string, loader func() *segio.Loader, before func(*dataset) error,
) rounds.Cell {
	return rounds.Cell{Key: as, Run: func(ctx context.Context, f *rounds.Figures) error {
		if before != nil {
			if err := before(d); err != nil {
				return err
			}
		}
		from := loader()
		if err := s.cold(ctx); err != nil {
			return err
		}
		debug.FreeOSMemory() // frees the memory that earlier starts have left
		memory, read, err := processFigures()
		if err != nil {
			return err
		}
		traceMark("sheaf begins " + as + s.traceLabel())
		begin := time.Now()
		if err := d.replayJournal(); err != nil {
			return err
		}
		loaded, err := d.load(ctx, s.residency, from)
		if err != nil {
			return err
		}
		seconds := time.Since(begin).Seconds()
		traceMark("sheaf ends " + as + s.traceLabel())
		memoryAfter, readAfter, err := processFigures()
		stats := loaded.stats()
		held := float64(stats.StoredBytes)
		f.Set(rounds.Rate, held/seconds)
		f.Set(secondsPerGB, seconds/held*1e9)
		f.Set(heldBytes, held)
		f.Set(readBytes, float64(readAfter-read))
		f.Set(touchedBytes, float64(max(memoryAfter-memory, 1)))
		f.Set(countedBytes, float64(stats.MemoryBytes))
		return errors.Join(err, loaded.close())
	}}
}

// processFigures returns the size of this process's anonymous memory, and the number of bytes that the process has
// read from devices so far.
func processFigures() (memory, read int64, err error) {
	memory, err = result.ProcNumber("/proc/self/status", "RssAnon")
	if err == nil {
		read, err = result.ProcNumber("/proc/self/io", "read_bytes")
	}
	return memory << 10, read, err
}

func (s *startBench) addRows(got turnResults) {
	seconds := func(what, ours, limit string, target float64) {
		s.add(got.atMost(fmt.Sprintf("start %s (%s)", what, s.what), "s/GB", secondsPerGB, ours, limit, target))
	}
	seconds("after SIGKILL / after a stop", "kill", "stop", 1.2)
	seconds("after SIGKILL with a journal / after a stop", "journal", "stop", 0)
	seconds("after a stop, active segments / sealed ones", "stop", "sealed", 0)
	seconds(fmt.Sprintf("after SIGKILL, %d small active segments / sealed ones", s.smallGroups()), "small", "small sealed",
		0)
	seconds("after SIGKILL, small active segments, one sync of the volume / a sync for each group", "small",
		"small, own syncs", 0)
	if s.residency == group.Resident {
		seconds("after SIGKILL / after a stop, touched memory", "kill, touched", "stop, touched", 1.2)
	}
	bytes := func(what, as, ours, limit string, target float64) result.Ratio {
		return atMost(fmt.Sprintf("%s (%s)", what, s.what), "B", got.Of(as, ours), got.Of(as, limit), target)
	}
	s.add(
		bytes("bytes read / held, after SIGKILL", "kill", readBytes, heldBytes, 1.05),
		bytes("bytes read / held, after a stop", "stop", readBytes, heldBytes, 1.05),
		bytes("bytes read / held, after SIGKILL, small groups", "small", readBytes, heldBytes, 0).
			WithNote("each group adds manifest, mark, name and inode: about 28 KiB"),
		bytes("memory touched / that of images and index, after SIGKILL", "kill", touchedBytes, countedBytes, 0).
			WithNote("buffers come on top, 64 KiB to 2 MiB for each group that is loaded at the time"),
	)
	for _, other := range []struct {
		what, name string
		target     float64
	}{
		{"one file per record, 8 at a time", "files", 0}, {"composite file, read and forgotten", "composite", 0},
		{"composite file, read into memory that is kept", "composite kept", 1}, {"O_DIRECT read into fresh memory", "raw", 0},
	} {
		if len(got.Rate(other.name)) > 0 {
			name := fmt.Sprintf("start after a stop / %s (%s)", other.what, s.what)
			s.add(got.against(name, "B/s", "stop", other.name, other.target))
		}
	}
}
