package layouts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
)

// run is the state of a run in progress.
type run struct {
	opts    Options
	scale   *scale
	cells   []cell
	absent  []missingFileSystem // file systems that cannot be measured
	present []*fileSystem
	notes   []string
	place   place
	set     *rounds.Set
}

// missingFileSystem is a file system that cannot be measured, with the reason.
type missingFileSystem struct {
	fs  string
	why string
}

// These constants determine how much disk space a run needs. An image is larger than its records by imageExtra, and
// diskReserve remains free.
const (
	imageExtra   = 256 << 20
	diskReserve  = 512 << 20 // bytes that are left free
	diskReserved = "512 MiB"
)

// plan determines what can be measured on this machine.
func (r *run) plan(ctx context.Context) error {
	o := &r.opts
	root := os.Geteuid() == 0
	if o.Device != "" && !root {
		return usage("--device needs root: this is user %d", os.Geteuid())
	}
	if o.Path == "" && !root {
		o.Path = o.Dir
		r.note("Mounting needs root, and this is user %d: the file system of %s is measured as it is, and no other.",
			os.Geteuid(), o.Path)
		for _, name := range o.FileSystems {
			r.absent = append(r.absent, missingFileSystem{name,
				fmt.Sprintf("mounting needs root, this is user %d", os.Geteuid())})
		}
	}
	if o.Path != "" {
		if err := r.planPath(); err != nil {
			return err
		}
	} else {
		r.planFileSystems(ctx)
	}
	if len(r.present) == 0 {
		words := make([]string, 0, len(r.absent))
		for _, a := range r.absent {
			words = append(words, a.fs+": "+a.why)
		}
		return fmt.Errorf("none of these file systems can be had here: %s", strings.Join(words, "; "))
	}
	for _, t := range o.Tables {
		for _, fs := range r.present {
			cells := [](func(*fileSystem, *scale) []cell){table1, table2, table3, table4, table5}[t-1](fs, r.scale)
			if o.Path != "" {
				cells = slices.DeleteFunc(cells, func(c cell) bool { return c.part == partLimit })
			}
			for i := range cells {
				if c := &cells[i]; fs.unindexed && (c.layout == flatTitle || c.layout == oneFolderTitle) {
					c.needs.seconds += float64(c.needs.files) * float64(c.needs.files) * secondsPerFileScanned
				}
			}
			r.cells = append(r.cells, cells...)
		}
	}
	return nil
}

func (r *run) planPath() error {
	p, err := newPathPlace(r.opts.Path)
	if err != nil {
		return err
	}
	r.place = p
	if p.warm != "" {
		r.note("Caches: %s.", p.warm)
	}
	name := typeOf(r.opts.Path)
	r.present = []*fileSystem{{name: name}}
	r.note("Only the file system that holds %s was measured; --fs, as root, measures others on loop devices.", r.opts.Path)
	return nil
}

func (r *run) planFileSystems(ctx context.Context) {
	for _, name := range r.opts.FileSystems {
		fs := findFileSystem(name)
		why, byFuse := fs.missing(ctx)
		if why != "" {
			r.absent = append(r.absent, missingFileSystem{name, why})
			r.opts.Say("%s is not measured: %s", name, why)
			continue
		}
		if byFuse {
			r.note("%s: this kernel has no driver %s, so %s serves it through FUSE.", name, fs.driver, fs.fuse[0])
			if fs.filesMax > 0 {
				r.note("%s: at most %d records a measurement, as it is slow.", name, fs.filesMax)
			}
		}
		r.present = append(r.present, fs)
	}
}

func (r *run) note(format string, a ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, a...))
}

// maxNeeds returns, for each resource, the maximum that any of the measurements needs.
func (r *run) maxNeeds() (most need) {
	for i := range r.cells {
		n := r.cells[i].needs
		most.files, most.disk, most.memory = max(most.files, n.files), max(most.disk, n.disk), max(most.memory, n.memory)
	}
	return most
}

// imageBytes returns the size of the image or device that the measurements need.
func (r *run) imageBytes() int64 {
	bytes := r.maxNeeds().disk*5/4 + imageExtra
	for _, fs := range r.present {
		bytes = max(bytes, fs.bytesMin+imageExtra/4)
	}
	return (bytes + 1<<20 - 1) &^ (1<<20 - 1)
}

// estimate prints the expected duration. It returns an error if memory or disk space is insufficient for the
// measurements.
func (r *run) estimate() error {
	most := r.maxNeeds()
	tables := strings.Trim(strings.ReplaceAll(fmt.Sprint(r.opts.Tables), " ", ","), "[]")
	what := fmt.Sprintf("table %s at scale %s", tables, r.opts.Scale)
	kib, err := result.ProcNumber("/proc/meminfo", "MemAvailable") // memory available without swapping
	if err != nil {
		return err
	}
	available := kib << 10
	if r.opts.MemoryLimit > 0 {
		available = min(available, r.opts.MemoryLimit)
	}
	if most.memory > available {
		return fmt.Errorf("%s takes up to %d MiB of memory, %d MiB are available: choose fewer tables or a smaller --scale",
			what, most.memory>>20, available>>20)
	}
	dir, disk := r.opts.Dir, r.imageBytes()
	if r.opts.Path != "" {
		dir, disk = r.opts.Path, most.disk*5/4
	}
	if r.opts.Device == "" {
		var s unix.Statfs_t
		if err := unix.Statfs(dir, &s); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if free := int64(s.Bavail) * s.Bsize; disk+diskReserve > free {
			return fmt.Errorf("%s takes up to %d MiB in %s, and %s more stay free, but %d MiB are free: "+
				"choose another --dir, fewer tables or a smaller --scale", what, disk>>20, dir, diskReserved, free>>20)
		}
	}
	names := make([]string, 0, len(r.present))
	for _, fs := range r.present {
		names = append(names, fs.name)
	}
	work := r.set.Work(r.inRounds(), r.opts.Rounds)
	r.opts.Say("%s: %d measurements, %d of them done, on %s; about %v, up to %d MiB of disk and %d MiB of memory",
		what, work.Total, work.Done, strings.Join(names, ", "), time.Duration(work.Left)*time.Second,
		disk>>20, most.memory>>20)
	return nil
}

// open prepares the place where everything is measured.
func (r *run) open(ctx context.Context) error {
	if r.place != nil {
		return nil
	}
	bytes := r.imageBytes()
	var p *blockPlace
	var err error
	if r.opts.Device != "" {
		p, err = newDevicePlace(r.opts.Device, r.opts.Dir, r.opts.Destroy)
		if err == nil && p.bytes < bytes {
			err = fmt.Errorf("%s has %d MiB, %d are needed: choose fewer tables or a smaller --scale",
				r.opts.Device, p.bytes>>20, bytes>>20)
			err = errors.Join(err, p.file.Close(), os.Remove(p.point))
		}
	} else {
		r.opts.Say("writing %d MiB of an image of %d MiB in %s", min(bytes, prewrittenMax)>>20, bytes>>20, r.opts.Dir)
		p, err = newLoopPlace(ctx, r.opts.Dir, bytes, min(bytes, prewrittenMax))
	}
	if err != nil {
		return err
	}
	r.place = p
	return nil
}

// all performs the measurements that have no result yet.
func (r *run) all(ctx context.Context) (err error) {
	cells := r.inRounds()
	if r.set.Work(cells, r.opts.Rounds).Done == len(cells)*r.opts.Rounds {
		return nil
	}
	if err := r.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.place.close()) }()
	opts := rounds.Options{Rounds: r.opts.Rounds, Each: r.opts.Progress, Columns: allFigures}
	return r.set.Measure(ctx, cells, opts)
}

// inRounds returns the measurements as cells for package rounds. There are two cases in which an error is stored as a
// result: a FUSE program serves the file system, or a layout other than Sheaf's has reached a limit of the file
// system. Any other error aborts the run.
func (r *run) inRounds() []rounds.Cell {
	out := make([]rounds.Cell, 0, len(r.cells))
	for i := range r.cells {
		c := &r.cells[i]
		out = append(out, rounds.Cell{
			Key: c.String(), Part: strconv.Itoa(c.table), Against: c.comparisonKey(), Seconds: c.needs.seconds,
			Run: func(ctx context.Context, f *rounds.Figures) error { return r.measure(ctx, c, f) },
			Finding: func(err error) bool {
				found := isLimitError(err) && c.layout != oursTitle || len(c.fs.fuse) > 0
				if found {
					r.opts.Say("%s: %v", c, err)
				}
				return found
			},
		})
	}
	return out
}

// measure performs one measurement.
func (r *run) measure(ctx context.Context, c *cell, f *rounds.Figures) error {
	s, err := r.place.begin(ctx, c.fs, c.needs.files)
	if err != nil {
		return err
	}
	s.Figures = f
	return errors.Join(c.run(ctx, s), r.place.end(s))
}

// settings returns the settings as one string. A run can be resumed only with the same settings.
func (r *run) settings() string {
	where := "loop"
	switch {
	case r.opts.Device != "":
		where = "device " + r.opts.Device
	case r.opts.Path != "":
		where = "path " + r.opts.Path
	}
	return strings.Join([]string{"scale " + r.opts.Scale, where, "version " + r.opts.Version}, ", ")
}
