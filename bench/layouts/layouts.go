// Package layouts measures how records can be stored: as files in several layouts of folders, as Sheaf's group files,
// and as a simple composite file, which is described in the text that inspired Sheaf. It measures these layouts side
// by side on the file systems that this kernel supports. Its tables reproduce those of five public texts (design.md,
// section 1). The command is `sheaf-bench layouts`.
package layouts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
)

// Options are the options of Run.
type Options struct {
	Dir         string   // folder for images of file systems and for mount points
	Device      string   // block device on which the file systems are created; if empty, they are created on an image
	Destroy     bool     // use Device even if it contains data, which is then lost
	Path        string   // measure in this folder, on its own file system, and create no file systems
	FileSystems []string // names from FileSystemNames; empty means all
	Tables      []int    // numbers of the tables to measure, 1 to 5; empty means all
	Scale       string   // one of the names that Scales returns
	Rounds      int      // number of rounds; 0 means the default of the scale
	State       string   // file that stores the results during a run; empty means that they are not stored
	Resume      bool     // continue with the results in State
	MemoryLimit int64    // number of bytes that this process may use; 0 means all available memory
	Version     string   // version of the program
	Say         func(format string, a ...any)
	Progress    func(rounds.Progress) // may be nil
}

const stateSchema = "sheaf.dev/bench/layouts-state/v2"

// These errors mean that the measurements cannot begin, because the options are wrong or the device contains data.
var (
	ErrUsage   = errors.New("wrong usage")
	ErrHasData = errors.New("the device carries data")
)

func usage(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrUsage, fmt.Sprintf(format, a...))
}

// Tables holds the titles of the tables 1 to 5, in this order.
var Tables = []string{
	"Single file against many (Vorontsov)",
	"Too many files: hashed paths (2007)",
	"One billion files (Wheeler)",
	"File creation latency (Turner)",
	"Deep against flat directories",
}

// Check finds mistakes in the options and fills in defaults.
func (o *Options) Check() error {
	if o.Scale == "" {
		o.Scale = "quick"
	}
	s, ok := scales[o.Scale]
	if !ok {
		return usage("--scale %q: must be one of %s", o.Scale, strings.Join(Scales(), ", "))
	}
	if o.Device != "" && o.Path != "" {
		return usage("--device and --path exclude each other")
	}
	if o.Destroy && o.Device == "" {
		return usage("--destroy goes with --device")
	}
	if o.Path != "" && len(o.FileSystems) > 0 {
		return usage("--path takes the file system that is there: leave --fs out")
	}
	if len(o.FileSystems) == 0 && o.Path == "" {
		o.FileSystems = FileSystemNames()
	}
	for i, name := range o.FileSystems {
		if findFileSystem(name) == nil {
			return usage("--fs %q: must be of %s", name, strings.Join(FileSystemNames(), ", "))
		}
		if slices.Contains(o.FileSystems[:i], name) {
			return usage("--fs names %s twice", name)
		}
	}
	if len(o.Tables) == 0 {
		o.Tables = []int{1, 2, 3, 4, 5}
	}
	for i, t := range o.Tables {
		if t < 1 || t > len(Tables) {
			return usage("--table %d: must be 1 to %d, or all", t, len(Tables))
		}
		if slices.Contains(o.Tables[:i], t) {
			return usage("--table names %d twice", t)
		}
	}
	if o.Rounds == 0 {
		o.Rounds = s.rounds
	}
	if o.Rounds < 1 || o.Rounds > 99 {
		return usage("--rounds %d: must be 1 to 99", o.Rounds)
	}
	if o.Resume && o.State == "" {
		return usage("--resume needs --out: the figures so far are kept there")
	}
	if o.Dir == "" {
		o.Dir = os.TempDir()
	}
	return nil
}

// Run performs the measurements. If it fails after some measurements, it returns their report together with the error.
func Run(ctx context.Context, opts Options) (report *result.Report, err error) {
	if err := opts.Check(); err != nil {
		return nil, err
	}
	started := time.Now()
	r := &run{opts: opts, scale: scales[opts.Scale]}
	if err := r.plan(ctx); err != nil {
		return nil, err
	}
	if r.set, err = rounds.Open(opts.State, stateSchema, r.settings(), opts.Resume, opts.Say); err != nil {
		return nil, err
	}
	if err := r.estimate(); err != nil {
		return nil, err
	}
	err = r.all(ctx)
	if len(r.set.Cells) == 0 && err != nil {
		return nil, err
	}
	report = r.report()
	report.Started, report.Ended, report.Version = started, time.Now(), opts.Version
	return report, err
}

// isLimitError reports whether an error means that a file system has reached one of its limits. Such an error is a
// result and not a benchmark failure.
func isLimitError(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EMLINK, syscall.EFBIG, syscall.ENAMETOOLONG,
		syscall.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
