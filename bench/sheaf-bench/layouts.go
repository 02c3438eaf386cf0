package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/base/cgroup"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/loop"
)

// layoutsFlags holds the flags of `sheaf-bench layouts`. Some of them are not among the options of package layouts.
type layoutsFlags struct {
	layouts.Options
	tables string
	rate   string
}

// layoutsState is the file in --out from which --resume continues.
const layoutsState = "layouts-state.json"

func (p *program) layouts() *cobra.Command {
	f := &layoutsFlags{}
	cmd := &cobra.Command{
		Use:   "layouts",
		Short: "Group files against files in folders and a composite file, on this machine's file systems",
		Long: `Runs the tables of five texts on small files again, with Sheaf's group files beside each layout: 1
single file against many, 2 hashed paths, 3 the life of a file system, 4 creation latency, 5 deep
against flat directories.

File systems are made on a loop device in --dir, or on --device; --path takes the one that is there.
Each measurement has a file system of its own, is read with cold caches (unmounted, drop_caches,
mounted again), and takes its turn with those it is compared with; medians of --rounds are given.
Making file systems needs root, and their tools: e2fsprogs, xfsprogs, btrfs-progs, ntfs-3g,
dosfstools, fusefat. One that cannot be had keeps its row, which says why. Nothing is left behind,
also when it is interrupted.

--scale quick takes minutes, full hours; paper has the sizes of the texts and takes a day. The time,
memory and room that it takes are said, and checked, before it starts.`,
		Example: `  sudo sheaf-bench layouts --fs ext4,xfs,btrfs --out report
  sudo sheaf-bench layouts --scale full --out report --resume
  sudo sheaf-bench layouts --device /dev/sdx --fs xfs --table 1,4
  sheaf-bench layouts --path /data --table 1 --device-rate rate.json -o json`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Dir, "dir", "",
		"where to make the image of the file systems (default: the system's folder for temporary files)")
	flags.StringVar(&f.Device, "device", "", "make the file systems on this block device; it must be blank")
	flags.BoolVar(&f.Destroy, "destroy", false, "the --device may carry data, which is lost")
	flags.StringVar(&f.Path, "path", "",
		"measure the file system of this folder as it is; needs no root, but caches are cold only for root")
	flags.StringSliceVar(&f.FileSystems, "fs", nil, "file systems: "+strings.Join(layouts.FileSystemNames(), ",")+
		" (default: all)")
	flags.StringVar(&f.tables, "table", "all", "tables: 1 to 5, as in 1,3, or all")
	flags.StringVar(&f.Scale, "scale", "quick", "how much: "+strings.Join(layouts.Scales(), ", "))
	flags.IntVar(&f.Rounds, "rounds", 0, "rounds to take medians of (default: 2 at quick scale, else 3)")
	flags.BoolVar(&f.Resume, "resume", false,
		"go on with the run that --out keeps: what is measured is not measured again")
	flags.StringVar(&f.rate, "device-rate", "",
		"measure first how fast the device below --path is read in order, and write that to this file; in a Job "+
			"/dev/termination-log, where the operator finds it")
	cli.Complete(cmd, "scale", layouts.Scales()...)
	cli.Complete(cmd, "fs", layouts.FileSystemNames()...)
	cli.Complete(cmd, "table", "all", "1", "2", "3", "4", "5")
	cmd.RunE = p.Body(func(ctx context.Context, _ []string) error { return p.runLayouts(ctx, f) })
	return cmd
}

func (p *program) runLayouts(ctx context.Context, f *layoutsFlags) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	var err error
	if f.Tables, err = tableNumbers(f.tables); err != nil {
		return err
	}
	if p.report.out != "" {
		f.State = filepath.Join(p.report.out, layoutsState)
	}
	f.MemoryLimit, f.Version, f.Say = cgroup.MemoryLimit("/"), version, p.Out.Sayf
	if err := f.Check(); err != nil {
		return layoutsError(err)
	}
	if f.rate != "" && f.Path == "" {
		return cli.Usagef("--device-rate goes with --path: other devices are created again for each measurement")
	}
	if f.Path == "" {
		if err := loop.OwnMounts(); err != nil {
			return err
		}
	}
	note, err := f.deviceRate(ctx)
	if err != nil {
		return fmt.Errorf("--device-rate: %w", err)
	}
	f.Progress = p.showProgress
	report, err := layouts.Run(ctx, f.Options)
	if p.Out.Terminal() {
		p.Out.SetLine("")
	}
	if err != nil {
		err = layoutsError(err)
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		if p.report.out != "" && report != nil {
			err = fmt.Errorf("%w (what was measured is kept: go on with --resume)", err)
		}
	}
	if report == nil {
		return err
	}
	if note != "" {
		report.Notes = append(report.Notes, note)
	}
	return p.print(report, err)
}

// deviceRate measures the device, writes the file that --device-rate names, and returns a note for the report.
func (f *layoutsFlags) deviceRate(ctx context.Context) (note string, err error) {
	if f.rate == "" {
		return "", nil
	}
	rate, err := layouts.MeasureDevice(ctx, f.Path, f.Scale)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(rate)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(f.rate, append(text, '\n'), 0o644); err != nil {
		return "", err
	}
	note = fmt.Sprintf(
		"The device below %s is read at %s/s in order and past the page cache (a file of %s, 4 reads of 1 MiB at a time).",
		f.Path, cli.FormatBytes(rate.ReadBytesPerSecond), cli.FormatBytes(rate.SampleBytes))
	f.Say("%s", note)
	return note, nil
}

// layoutsError assigns the right exit code to usage errors.
func layoutsError(err error) error {
	if errors.Is(err, layouts.ErrUsage) {
		return cli.Usagef("%w", err)
	}
	return err
}

func tableNumbers(s string) ([]int, error) {
	if s == "all" {
		return nil, nil
	}
	var numbers []int
	for word := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil {
			return nil, cli.Usagef("--table %q: must be numbers of 1 to %d, as in 1,3, or all", s, len(layouts.Tables))
		}
		if !slices.Contains(numbers, n) {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// bar draws a completed fraction, 0 to 1, followed by a blank. It draws nothing if the fraction is negative, which
// means that the progress is unknown.
func bar(done float64) string {
	const width = 20
	if done < 0 {
		return ""
	}
	full := int(min(done, 1) * width)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "] "
}

// showProgress shows how far a run is: in a bar on a terminal, and otherwise in one line for each measurement.
func (p *program) showProgress(now rounds.Progress) {
	left := now.Left.Round(time.Second)
	switch {
	case p.Out.Terminal():
		p.Out.SetLine(fmt.Sprintf("%s%d%% %d/%d %v to go: %s", bar(now.Part), int(100*now.Part), now.Done, now.Total,
			left, now.Key))
	case now.Ended && now.Figures != "":
		p.Out.Sayf("%d/%d, %v to go: %s: %s", now.Done, now.Total, left, now.Key, now.Figures)
	}
}
