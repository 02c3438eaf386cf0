// Package demo is what `make run` shows: a real tree becomes records, everything is killed, and comes back at the speed
// of the disk.
package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sheaf.dev/sheaf/internal/cli"
	"sheaf.dev/sheaf/internal/dev"
)

// Options of Run.
type Options struct {
	Trees     []string
	Listen    string // of the gateway
	HTTP      string
	Residency string // index or resident
	Once      bool   // end after the report
	Out       *cli.Output
}

// demo is one run.
type demo struct {
	Options
	dir   string
	child *exec.Cmd
	ended chan struct{} // closed when child has ended
	conn  *cli.Conn
	named []tree
}

// tree is an imported tree.
type tree struct {
	dir    string
	prefix string
}

// Run starts a store in a process of its own, imports the trees, kills the process, starts it again, and says what all that
// took. Without Once it then waits until ctx ends. It leaves nothing behind.
func Run(ctx context.Context, opts Options) (err error) {
	d := &demo{Options: opts}
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
	if d.conn, err = cli.Dial(opts.Listen); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.conn.Close()) }()
	defer d.end()
	if err := d.show(ctx); err != nil {
		return err
	}
	if opts.Once {
		return nil
	}
	d.sayTry()
	select {
	case <-ctx.Done():
		return nil
	case <-d.ended:
		return errors.New("sheaf dev has ended by itself")
	}
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.Out.Out, format+"\n", args...)
}

// checkFree says early and clearly that a port is taken.
func checkFree(ctx context.Context, address string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s is taken, by another sheaf dev perhaps: stop it, or take other ports with ARGS='--listen 127.0.0.1:17600 --http 127.0.0.1:17601'", address)
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
	if err := d.child.Process.Kill(); err != nil {
		return fmt.Errorf("killing sheaf dev: %w", err)
	}
	<-d.ended
	rate, err := d.deviceRate()
	if err != nil {
		return err
	}
	cold := dropCaches()

	d.say("4. Start again: the groups are read back in parallel")
	took, err = d.start(ctx)
	if err != nil {
		return err
	}
	load, err := d.status(ctx)
	if err != nil {
		return err
	}
	d.sayLoad(took, load, rate)
	if err := d.check(ctx); err != nil {
		return err
	}

	d.say("5. The same bytes as one file per record")
	return d.sayFiles(ctx, took, load, cold)
}

// start runs sheaf dev on the folder and returns when it serves every group.
func (d *demo) start(ctx context.Context) (time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("finding the binary: %w", err)
	}
	begin := time.Now()
	log, err := os.CreateTemp("", "sheaf-run-log-")
	if err != nil {
		return 0, fmt.Errorf("making a log: %w", err)
	}
	defer func() { _ = errors.Join(log.Close(), os.Remove(log.Name())) }()                                                                          // it is needed only when the start fails
	d.child = exec.Command(self, "dev", "--dir", filepath.Join(d.dir, "store"), "--listen", d.Listen, "--http", d.HTTP, "--residency", d.Residency) //nolint:noctx // it is stopped by end
	d.child.Stderr = log
	// A Ctrl-C is for us: we stop it. It must not outlive us either.
	d.child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := d.child.Start(); err != nil {
		return 0, fmt.Errorf("starting sheaf dev: %w", err)
	}
	d.ended = make(chan struct{})
	go func(child *exec.Cmd, ended chan struct{}) {
		_ = child.Wait() // how it ended does not matter, that it did does
		close(ended)
	}(d.child, d.ended)
	for !d.ready(ctx) {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-d.ended:
			words, _ := os.ReadFile(log.Name())
			return 0, fmt.Errorf("sheaf dev ended: %s", words)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return time.Since(begin), nil
}

func (d *demo) ready(ctx context.Context) bool {
	body, err := d.get(ctx, "/readyz")
	return err == nil && strings.HasPrefix(string(body), "ok")
}

func (d *demo) status(ctx context.Context) (dev.Status, error) {
	var s dev.Status
	body, err := d.get(ctx, "/status")
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	if err != nil {
		return s, fmt.Errorf("asking for the status: %w", err)
	}
	return s, nil
}

func (d *demo) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.HTTP+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // only read from
	var body strings.Builder
	if _, err := bufio.NewReader(response.Body).WriteTo(&body); err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", response.Status, body.String())
	}
	return []byte(body.String()), nil
}

// end stops the process, if it runs.
func (d *demo) end() {
	if d.child == nil || d.child.Process == nil {
		return
	}
	_ = d.child.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-d.ended:
	case <-time.After(30 * time.Second):
		_ = d.child.Process.Kill()
		<-d.ended
	}
}

func (d *demo) importTrees(ctx context.Context) error {
	var files, bytes int64
	begin := time.Now()
	for _, t := range d.named {
		r, err := cli.Import(ctx, d.conn, d.Out, cli.ImportOptions{Dir: t.dir, ID: "hash", Prefix: t.prefix, FirstID: 1, Symlinks: "keep"})
		if err != nil {
			return fmt.Errorf("importing %s: %w", t.dir, err)
		}
		files += r.Stored
		bytes += r.StoredBytes
		d.say("   %s: %s files, %s in %.1f s: %s files/s, %s/s", t.dir, cli.FormatCount(r.Stored), cli.FormatBytes(r.StoredBytes), r.Seconds,
			cli.FormatCount(int64(float64(r.Stored)/r.Seconds)), cli.FormatBytes(int64(float64(r.StoredBytes)/r.Seconds)))
		for _, kind := range cli.SortedKeys(r.Failed) {
			d.say("   not imported, %s: %d", kind, r.Failed[kind])
		}
	}
	seconds := time.Since(begin).Seconds()
	d.say("   together: %s records, %s, durable, %s files/s, %s/s", cli.FormatCount(files), cli.FormatBytes(bytes),
		cli.FormatCount(int64(float64(files)/seconds)), cli.FormatBytes(int64(float64(bytes)/seconds)))
	return nil
}
