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
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// Starts as users live them: after a kill, after a power cut with a full journal, after a stop, with small groups;
// cold, on each file system, beside files, a plain composite file and the raw read of the same bytes.

const (
	startSmallBytes  = 256 << 10 // of a small active segment
	startSmallGroups = 256       // of them at most
	roomBytesMin     = 1 << 18   // behind the end of an active segment, as a process allocates it ahead
	roomBytesMax     = 1 << 24
	journalPuts      = 600
)

// zerosShare is the part of a segment that zeros written ahead are at most.
var zerosShare = map[group.Residency]int64{group.Resident: 32, group.Index: 256}

// startCase is one size of records in one residency.
type startCase struct {
	size      int
	residency group.Residency
}

var startCases = []startCase{{10 << 10, group.Resident}, {10 << 10, group.Index}, {1 << 10, group.Resident}, {1 << 10, group.Index}}

// starts measures on the file system of the folder, or on each of those that were asked for.
func (b *loadBench) starts(ctx context.Context) error {
	if len(b.opts.FileSystems) == 0 {
		return b.startsOn(ctx, b.dir, "", func(ctx context.Context) error { return layouts.Evict(ctx, b.dir, true) })
	}
	files := int(2*b.opts.StartBytes/(1<<10)) + 1<<14
	for _, fs := range b.opts.FileSystems {
		err := layouts.OnLoop(ctx, fs, b.dir, 1<<30+14*b.opts.StartBytes, files, func(dir string, cold func(context.Context) error) error {
			return b.startsOn(ctx, dir, fs+", ", cold)
		})
		switch {
		case errors.Is(err, layouts.ErrNotHere):
			b.opts.Say("%s is not measured: %v", fs, err)
		case err != nil:
			return fmt.Errorf("%s: %w", fs, err)
		}
	}
	return nil
}

func (b *loadBench) startsOn(ctx context.Context, dir, prefix string, cold func(context.Context) error) error {
	for _, c := range startCases {
		s := &startBench{loadBench: b, startCase: c, cold: cold, dir: filepath.Join(dir, strconv.Itoa(c.size)+c.residency.String())}
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
	started   map[string][]started // by variant
}

// started is what one start took.
type started struct {
	seconds float64
	held    float64 // bytes of frames and hints
	read    float64 // bytes, from the device
	touched float64 // bytes of anonymous memory that the process has more
	counted float64 // bytes of memory that the groups say they use
}

func (s *startBench) measure(ctx context.Context) error {
	s.started = map[string][]started{}
	records := s.opts.StartBytes / int64(s.size)
	datasets := map[string]*dataset{}
	for name, d := range map[string]struct {
		groups       int
		open, killed bool
	}{
		"stop": {groupCount, true, false}, "kill": {groupCount, true, true}, "journal": {groupCount, true, true}, "sealed": {groupCount, false, false},
		"small": {s.smallGroups(), true, true}, "small sealed": {s.smallGroups(), false, false},
	} {
		one := &dataset{dir: filepath.Join(s.dir, strings.ReplaceAll(name, " ", "-")), size: s.size, open: d.open, killed: d.killed}
		_, err := one.fill(ctx, d.groups, records, s.opts.Say)
		if err != nil {
			return err
		}
		datasets[name] = one
	}
	ownSyncs := *datasets["small"] // the same files
	ownSyncs.ownSyncs = true
	datasets["small, own syncs"] = &ownSyncs
	loaders := newLoaders()
	defer loaders.close()
	start := func(name, as string, loader func() *segio.Loader, before func(*dataset) error) variant {
		return variant{as, func() (float64, error) { return s.start(ctx, datasets[name], as, loader(), before) }}
	}
	addRoom := func(d *dataset) error { return d.addRoom(s.residency) }
	variants := []variant{
		start("stop", "stop", loaders.fresh, nil),
		start("kill", "kill", loaders.fresh, addRoom),
		start("journal", "journal", loaders.fresh, func(d *dataset) error { return d.writeAndKill(ctx) }),
		start("sealed", "sealed", loaders.fresh, nil),
		start("small", "small", loaders.fresh, addRoom),
		start("small, own syncs", "small, own syncs", loaders.fresh, addRoom),
		start("small sealed", "small sealed", loaders.fresh, nil),
	}
	if s.residency == group.Resident {
		touched := loaders.touched
		variants = append(variants, start("stop", "stop, touched", touched, nil), start("kill", "kill, touched", touched, addRoom))
		more, err := s.otherWays(ctx, datasets["sealed"], records)
		if err != nil {
			return err
		}
		variants = append(variants, more...)
	}
	rates, err := takeTurns(s.opts.Rounds, s.opts.Say, variants...)
	if err != nil {
		return err
	}
	s.addRows(rates)
	return nil
}

// smallGroups is the number of groups with a small active segment each.
func (s *startBench) smallGroups() int {
	return int(max(2, min(startSmallGroups, s.opts.StartBytes/startSmallBytes)))
}

// start loads a dataset, cold, and gives bytes per second.
func (s *startBench) start(ctx context.Context, d *dataset, as string, loader *segio.Loader, before func(*dataset) error) (float64, error) {
	if before != nil {
		if err := before(d); err != nil {
			return 0, err
		}
	}
	if err := s.cold(ctx); err != nil {
		return 0, err
	}
	debug.FreeOSMemory() // what earlier starts left
	memory, read, err := processFigures()
	if err != nil {
		return 0, err
	}
	traceMark("sheaf begins " + as + s.traced())
	begin := time.Now()
	if err := d.replayJournal(); err != nil {
		return 0, err
	}
	loaded, err := d.load(ctx, s.residency, loader)
	if err != nil {
		return 0, err
	}
	one := started{seconds: time.Since(begin).Seconds()}
	traceMark("sheaf ends " + as + s.traced())
	memoryAfter, readAfter, err := processFigures()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return 0, errors.Join(err, loaded.close())
	}
	stats := loaded.stats()
	if stats.Records < d.records {
		return 0, errors.Join(fmt.Errorf("%d records were loaded, %d are stored", stats.Records, d.records), loaded.close())
	}
	one.held, one.read = float64(stats.StoredBytes), float64(readAfter-read)
	one.touched, one.counted = float64(max(memoryAfter-memory, 1)), float64(stats.MemoryBytes)
	s.started[as] = append(s.started[as], one)
	return one.held / one.seconds, loaded.close()
}

// processFigures are the anonymous memory of this process, and the bytes that it had read from devices, so far.
func processFigures() (memory, read int64, err error) {
	memory, err = result.ProcNumber("/proc/self/status", "RssAnon")
	if err == nil {
		read, err = result.ProcNumber("/proc/self/io", "read_bytes")
	}
	return memory << 10, read, err
}

func (s *startBench) figures(as string, figure func(started) float64) (out []float64) {
	for _, one := range s.started[as] {
		out = append(out, figure(one))
	}
	return out
}

func (s *startBench) addRows(rates map[string][]float64) {
	secondsPerByte := func(o started) float64 { return o.seconds / o.held * 1e9 }
	seconds := func(what, ours, limit string, target float64) {
		s.add(atMost(fmt.Sprintf("start %s (%s)", what, s.what), "s/GB", s.figures(ours, secondsPerByte), s.figures(limit, secondsPerByte), target))
	}
	seconds("after SIGKILL / after a stop", "kill", "stop", 1.2)
	seconds("after SIGKILL with a journal / after a stop", "journal", "stop", 0)
	seconds("after a stop, active segments / sealed ones", "stop", "sealed", 0)
	seconds(fmt.Sprintf("after SIGKILL, %d small active segments / sealed ones", s.smallGroups()), "small", "small sealed", 0)
	seconds("after SIGKILL, small active segments, one sync of the volume / a sync for each group", "small", "small, own syncs", 0)
	if s.residency == group.Resident {
		seconds("after SIGKILL / after a stop, touched memory", "kill, touched", "stop, touched", 1.2)
	}
	bytes := func(what, as string, ours, limit func(started) float64, target float64) result.Ratio {
		return atMost(fmt.Sprintf("%s (%s)", what, s.what), "B", s.figures(as, ours), s.figures(as, limit), target)
	}
	read, held := func(o started) float64 { return o.read }, func(o started) float64 { return o.held }
	s.add(
		bytes("bytes read / held, after SIGKILL", "kill", read, held, 1.05),
		bytes("bytes read / held, after a stop", "stop", read, held, 1.05),
		bytes("bytes read / held, after SIGKILL, small groups", "small", read, held, 0).WithNote("each group adds manifest, mark, name and inode: about 28 KiB"),
		bytes("memory touched / that of images and index, after SIGKILL", "kill", func(o started) float64 { return o.touched },
			func(o started) float64 { return o.counted }, 0).WithNote("buffers come on top, 64 KiB to 2 MiB for each group that is loaded at the time"),
	)
	for _, other := range []struct {
		what, name string
		target     float64
	}{
		{"one file per record, 8 at a time", "files", 0}, {"composite file, read and forgotten", "composite", 0},
		{"composite file, read into memory that is kept", "composite kept", 1}, {"O_DIRECT read into fresh memory", "raw", 0},
	} {
		if limit := rates[other.name]; len(limit) > 0 {
			s.add(against(fmt.Sprintf("start after a stop / %s (%s)", other.what, s.what), "B/s", rates["stop"], limit, other.target))
		}
	}
}
