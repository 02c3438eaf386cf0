// Package layouts measures how records are stored: as files in several layouts of folders, as the simple composite file
// of the text that Sheaf comes from, and as Sheaf's group files, side by side on the file systems that this kernel has.
// Its tables are those of five public texts (design.md, section 1): `sheaf-bench layouts`.
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

// Options of Run.
type Options struct {
	Dir         string   // where images of file systems, or folders, are made
	Device      string   // make the file systems on this block device instead
	Destroy     bool     // the device may carry data
	Path        string   // use the file system of this folder as it is, and make none
	FileSystems []string // names of FileSystemNames; empty: all
	Tables      []int    // 1 to 5; empty: all
	Scale       string   // one of Scales
	Rounds      int      // medians of so many; 0: the scale's
	State       string   // file that keeps the figures so far; empty: none
	Resume      bool     // go on with what State holds
	MemoryLimit int64    // bytes that this process may use; 0: what the machine has
	Version     string   // of the program
	Say         func(format string, a ...any)
	Progress    func(rounds.Progress) // nil: nobody
}

const stateSchema = "sheaf.dev/bench/layouts-state/v2"

// Errors that blame the call.
var (
	ErrUsage   = errors.New("wrong usage")
	ErrHasData = errors.New("the device carries data")
)

func usage(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrUsage, fmt.Sprintf(format, a...))
}

// Tables are the numbers of the tables with their titles.
var Tables = []string{
	"Single file against many (Vorontsov)",
	"Too many files: hashed paths (2007)",
	"One billion files (Wheeler)",
	"File creation latency (Turner)",
	"Deep against flat directories",
}

// Check finds mistakes in the options and fills in what is left out.
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

// Run measures. A report of what was measured so far comes with an error too, where there is anything to report.
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

// refused tells whether a file system ran into one of its limits: no error of the benchmark, but what it shows.
func refused(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EMLINK, syscall.EFBIG, syscall.ENAMETOOLONG,
		syscall.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
