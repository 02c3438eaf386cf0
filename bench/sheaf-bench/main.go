// Command sheaf-bench measures Sheaf against the limits of the machine it runs on, and runs the demo of `make run`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/internal/local/cli"
)

// version is set by the build.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := &program{Program: cli.Program{Out: &cli.Output{Out: os.Stdout, Err: os.Stderr}}}
	err := p.Run(ctx, p.root(), os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "sheaf-bench: %s\n", cli.Describe(err, ""))
	}
	os.Exit(cli.ExitCode(err))
}

// program is the state that all commands share.
type program struct {
	cli.Program
	report reportFlags
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sheaf-bench",
		Short: "Measure Sheaf against the limits of this machine",
		Long: `Measures side by side with what the machine gives at most, in one run, in an order that rotates from
round to round, and compares medians. Ratios count; the figures beside them are those of this
machine.

Exit codes: 0 done, 1 failed, 2 wrong usage. Data goes to stdout, words to stderr. Targets are
shown, not enforced.`,
		Version: fmt.Sprintf("%s (%s, %s/%s)", version, runtime.Version(), runtime.GOOS, runtime.GOARCH),
	}
	p.Flags(root)
	for _, c := range []*cobra.Command{
		p.load(), p.rpc(), p.writePath(), p.copies(), p.archive(), p.layouts(), p.readers(),
	} {
		p.report.add(c)
		root.AddCommand(c)
	}
	root.AddCommand(p.demo())
	return root
}

// reportFlags are the flags that determine where a report is written.
type reportFlags struct {
	out, compare string
	old          *result.Report // the report that --compare names
}

// add adds the flags --out and --compare. If --compare names an older report, the report is read before anything is
// measured.
func (f *reportFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.out, "out", "", "folder for report.json, report.md, report.html and plots")
	cmd.Flags().StringVar(&f.compare, "compare", "", "report.json of an older run; marks what got worse")
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		if f.compare != "" {
			if f.old, err = result.ReadFile(f.compare); err != nil {
				err = fmt.Errorf("--compare: %w", err)
			}
		}
		if err == nil && f.out != "" {
			err = os.MkdirAll(f.out, 0o755)
		}
		return cli.Done(err)
	}
}

// print writes the report, even if an error aborted the measurements. The report shows which targets were met, but a
// missed target is no error, because a machine under load misses some.
func (p *program) print(report *result.Report, err error) error {
	report.Version = version
	if p.report.old != nil {
		if other := report.Compare(p.report.old); other != nil {
			err = errors.Join(err, fmt.Errorf("--compare %s: %w", p.report.compare, other))
		}
	}
	if p.report.out != "" {
		if unwritten := report.WriteDir(p.report.out); unwritten != nil {
			err = errors.Join(err, unwritten)
		} else {
			p.Out.Sayf("%s", filepath.Join(p.report.out, "report.html"))
		}
	}
	if p.Out.JSON {
		return errors.Join(err, report.WriteJSON(p.Out.Out))
	}
	return errors.Join(err, report.WriteMarkdown(p.Out.Out, ""))
}

// sheafFlag adds the flag for the path of the sheaf program that is measured. Without the flag, sheafBeside finds the
// program.
func sheafFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "sheaf", "",
		"the program sheaf, whose processes are measured (default: the one beside this program)")
}

// sheafBeside returns the path of the sheaf program, and checks that the program exists. If path is empty, sheaf is
// expected in this program's folder.
func sheafBeside(path string) (string, error) { return beside(path, "sheaf", "give --sheaf") }

// beside returns the path of a program that is measured, and checks that the program exists. If path is empty, the
// program is expected in this program's folder, under the given name. The argument help says what to do if it is
// missing.
func beside(path, name, help string) (string, error) {
	if path == "" {
		own, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("finding this program: %w", err)
		}
		path = filepath.Join(filepath.Dir(own), name)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the program %s, whose processes are measured: %w: %s", filepath.Base(name), err, help)
	}
	return path, nil
}
