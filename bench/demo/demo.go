// Package demo is the program behind `make run`. It imports a real tree as records, kills the store, and shows that the
// store serves again at the disk's speed.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/dev"
)

// Options are the options of Run.
type Options struct {
	Trees     []string
	Listen    string // address of the gateway
	HTTP      string
	Residency string // "index" or "resident"
	Once      bool   // stop after the report
	Out       *cli.Output
	StallMax  time.Duration // maximum time without progress during a wait; 0 means a minute
	Program   string        // path of the program that runs `sheaf dev`; empty means this program
}

// demo is the state of one run of the demo.
type demo struct {
	Options
	dir     string
	logDir  string // folder for the log of `sheaf dev`
	keepLog bool   // keep the log, because an error occurred
	child   *child
	conn    *cli.Conn
	named   []tree
	// last is the most recent response from /status, and lastBody holds its bytes. lastBody is nil if the current
	// process has not responded yet.
	last     dev.Status
	lastBody []byte
}

// tree is an imported tree.
type tree struct {
	dir    string
	prefix string
	files  map[string]state // state of each file before the import, by the file's path
}

// Run starts a store in its own process, imports the trees, kills the process, starts it again, and reports how long
// each step took. Without Once it then waits until ctx is done. Run leaves nothing behind unless something fails. In
// that case, the error includes the store's last status and the location of its log.
func Run(ctx context.Context, opts Options) (err error) {
	d := &demo{Options: opts}
	if d.StallMax <= 0 {
		d.StallMax = stallMaxDefault
	}
	if d.Program == "" {
		if d.Program, err = os.Executable(); err != nil {
			return fmt.Errorf("finding the binary: %w", err)
		}
	}
	for _, address := range []string{opts.Listen, opts.HTTP} {
		if err := checkFree(ctx, address); err != nil {
			return err
		}
	}
	if err := d.nameTrees(); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "sheaf-run-"); err != nil {
		return fmt.Errorf("making a temporary folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	if d.logDir, err = os.MkdirTemp("", "sheaf-run-log-"); err != nil {
		return fmt.Errorf("making a folder for the log: %w", err)
	}
	defer func() {
		if !d.keepLog {
			err = errors.Join(err, os.RemoveAll(d.logDir))
		}
	}()
	if d.conn, err = cli.Dial(opts.Listen, cli.TLS{}, 0); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.conn.Close()) }()
	defer func() { err = errors.Join(err, d.end()) }()
	if err := d.run(ctx); err != nil {
		if ctx.Err() != nil {
			return err // the user has interrupted the demo
		}
		return d.withEvidence(err)
	}
	return nil
}

// run does the work of Run in the folder d.dir.
func (d *demo) run(ctx context.Context) error {
	if err := d.show(ctx); err != nil || d.Once {
		return err
	}
	d.sayTry()
	select {
	case <-ctx.Done():
		return nil
	case <-d.child.Ended:
		return errChildEnded
	}
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.Out.Out, format+"\n", args...)
}

// checkFree returns a clear error early if a port is in use.
func checkFree(ctx context.Context, address string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf(
			"%s is taken, by another sheaf dev perhaps: stop it, or take other ports with ARGS='--listen 127.0.0.1:17600 "+
				"--http 127.0.0.1:17601'", address)
	}
	if err != nil {
		return fmt.Errorf("listening on %s: %w", address, err)
	}
	return l.Close()
}

func (d *demo) nameTrees() error {
	taken := map[string]bool{}
	for _, dir := range d.Trees {
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			d.say("(%s does not exist: left out)", dir)
			continue
		}
		if err != nil {
			return fmt.Errorf("the tree to import: %w", err)
		}
		if !info.IsDir() {
			return fmt.Errorf("the tree to import: %s is not a folder", dir)
		}
		prefix := filepath.Base(dir)
		for taken[prefix] {
			prefix += "-"
		}
		taken[prefix] = true
		d.named = append(d.named, tree{dir: dir, prefix: prefix})
	}
	if len(d.named) == 0 {
		return errors.New("there is no tree to import")
	}
	return nil
}

func (d *demo) show(ctx context.Context) error {
	d.say("1. A store: 3 shards, 16 groups, residency %s, in one process", d.Residency)
	took, err := d.start(ctx)
	if err != nil {
		return err
	}
	d.say("   serving on %s after %.2f s (folder %s)", d.Listen, took.Seconds(), d.dir)

	d.say("2. Import: every file becomes a record")
	if err := d.importTrees(ctx); err != nil {
		return err
	}

	d.say("3. Kill: SIGKILL, no warning")
	if err := d.child.kill(); err != nil {
		return err
	}
	segments, blobBytes, err := d.onDisk()
	if err != nil {
		return err
	}
	rate := d.deviceRate(segments)
	cold := dropCaches()

	d.say("4. Start again: the groups are read back in parallel")
	took, err = d.start(ctx)
	if err != nil {
		return err
	}
	status, err := d.status(ctx)
	if err != nil {
		return err
	}
	l := d.measureLoad(took, status, blobBytes)
	d.sayLoad(l, rate, cold)
	if err := d.check(ctx); err != nil {
		return err
	}

	d.say("5. The same bytes as one file per record")
	return d.sayFiles(ctx, l, cold)
}

// start runs `sheaf dev` on the folder, and returns the time from exec until it serves every group.
func (d *demo) start(ctx context.Context) (time.Duration, error) {
	if err := d.launch(); err != nil {
		return 0, err
	}
	if err := d.awaitReady(ctx); err != nil {
		return 0, err
	}
	return time.Since(d.child.began), nil
}

func (d *demo) importTrees(ctx context.Context) error {
	var files, bytes int64
	for i := range d.named {
		if err := d.named[i].recordFiles(ctx); err != nil {
			return fmt.Errorf("importing %s: %w", d.named[i].dir, err)
		}
	}
	begin := time.Now()
	for _, t := range d.named {
		var r cli.ImportReport
		err := d.runWhileServing(ctx, "the import", writeMark, func(ctx context.Context) (err error) {
			r, err = cli.Import(ctx, d.conn, d.Out, cli.ImportOptions{Dir: t.dir, ID: "hash", Prefix: t.prefix, FirstID: 1,
				Symlinks: "keep"})
			return err
		})
		if err != nil {
			return fmt.Errorf("importing %s: %w", t.dir, err)
		}
		files += r.Stored
		bytes += r.StoredBytes
		d.say("   %s: %s files, %s in %.1f s: %s/s, %s/s", t.dir, cli.FormatCount(r.Stored),
			cli.FormatBytes(r.StoredBytes), r.Seconds,
			cli.Count(int64(float64(r.Stored)/r.Seconds), "file", "files"),
			cli.FormatBytes(int64(float64(r.StoredBytes)/r.Seconds)))
		for _, kind := range cli.SortedKeys(r.Failed) {
			d.say("   %s: %s", cli.FormatCount(r.Failed[kind]), cli.ImportFailure(kind))
		}
	}
	seconds := time.Since(begin).Seconds()
	d.say("   together: %s records, %s, durable, %s files/s, %s/s", cli.FormatCount(files), cli.FormatBytes(bytes),
		cli.FormatCount(int64(float64(files)/seconds)), cli.FormatBytes(int64(float64(bytes)/seconds)))
	return nil
}
