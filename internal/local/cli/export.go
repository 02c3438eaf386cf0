package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/client"
)

// ExportOptions are the options of Export.
type ExportOptions struct {
	Dir      string // created if it does not exist
	Group    string // only this group; empty: all
	Prefix   string // only records whose path lies below it; it is removed from the path
	Force    bool   // replace existing files
	Workers  int    // number of file writers; 0: 8
	Failures string // file for the list of all failures, JSON lines
	Quiet    bool
}

// Kinds of failures of an export.
const (
	failThere   = "there already"
	failOutside = "path leads outside"
	failWrite   = "cannot be written"
	failRead    = "cannot be read"
	failTwice   = "path exported twice"
)

// ExportReport is the result of an export.
type ExportReport struct {
	Files    int64   `json:"files"`
	Bytes    int64   `json:"bytes"`
	Symlinks int64   `json:"symlinks"`
	NoPath   int64   `json:"no_path"` // records that no import made, written to _records/GROUP/ID
	Failed   Failed  `json:"failed,omitempty"`
	Seconds  float64 `json:"seconds"`
}

// noPathDir is the folder for records without a path.
const noPathDir = "_records"

// exporter is one export in progress. All files are opened below root; no path or symbolic link leads out of it.
type exporter struct {
	opts    ExportOptions
	conn    *Conn
	out     *Output
	root    *os.Root
	failed  failures
	written firsts[nameHash, struct{}] // paths of this run

	files, bytes, symlinks, noPath atomic.Int64

	// For the progress display only: the number of processed records of the scan, whatever their outcome, and the
	// total. The bytes of the files are not known in advance.
	done, total atomic.Int64
	totalKnown  atomic.Bool
}

// Export writes records back as files: records that import made go to their path, with mode and time. The scan uses one
// snapshot per group. Records that fail do not end the export: they are counted and listed.
func Export(ctx context.Context, conn *Conn, out *Output, opts ExportOptions) (ExportReport, error) {
	if err := count("workers", &opts.Workers, 8); err != nil {
		return ExportReport{}, err
	}
	if opts.Prefix != "" {
		opts.Prefix = path.Clean(opts.Prefix)
	}
	if opts.Dir == "" {
		return ExportReport{}, Usagef("the folder to export to has no name")
	}
	if err := os.MkdirAll(opts.Dir, 0o755); err != nil {
		return ExportReport{}, fmt.Errorf("the folder to export to: %w", err)
	}
	root, err := os.OpenRoot(opts.Dir)
	if err != nil {
		return ExportReport{}, fmt.Errorf("the folder to export to: %w", err)
	}
	defer root.Close() //nolint:errcheck // a descriptor of a folder
	e := &exporter{opts: opts, conn: conn, out: out, root: root}
	if err := e.failed.open(opts.Failures); err != nil {
		return ExportReport{}, err
	}
	begin := time.Now()
	progress := startProgress(out, opts.Quiet, "exported", "records", e.tally)
	counting, stopCounting := context.WithCancel(ctx)
	var counted sync.WaitGroup
	counted.Go(func() { e.count(counting) })
	err = e.run(ctx)
	stopCounting()
	counted.Wait()
	progress.stop()
	report := ExportReport{
		Files: e.files.Load(), Bytes: e.bytes.Load(), Symlinks: e.symlinks.Load(), NoPath: e.noPath.Load(),
		Failed: e.failed.counts(), Seconds: time.Since(begin).Seconds(),
	}
	if closeErr := e.failed.close(); err == nil {
		err = closeErr
	}
	return report, err
}

// count asks for the number of records. If that fails, the progress display says less.
func (e *exporter) count(ctx context.Context) {
	listed, err := e.conn.Admin.ListGroups(ctx, &recordv1.ListGroupsRequest{Group: e.opts.Group})
	if err != nil {
		return
	}
	records := map[string]int64{} // by group: each of its copies reports a number, and the greatest counts
	for _, g := range listed.GetGroups() {
		records[g.GetGroup()] = max(records[g.GetGroup()], g.GetRecords())
	}
	for _, n := range records {
		e.total.Add(n)
	}
	e.totalKnown.Store(true)
}

// tally counts records as files, including skipped records, as the total does.
func (e *exporter) tally() tally {
	return tally{files: e.done.Load(), bytes: e.bytes.Load(), totalFiles: e.total.Load(), totalKnown: e.totalKnown.Load()}
}

func (e *exporter) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	records := make(chan client.Record, 2*e.opts.Workers)
	g.Go(func() error {
		defer close(records)
		for r, err := range e.conn.Scan(ctx, &client.ScanOptions{Group: e.opts.Group}) {
			if err != nil {
				return fmt.Errorf("scanning: %w", err)
			}
			select {
			case records <- r:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for range e.opts.Workers {
		g.Go(func() error {
			for r := range records {
				if err := e.record(ctx, r); err != nil {
					return err
				}
				e.done.Add(1)
			}
			return nil
		})
	}
	return g.Wait()
}

// record writes one record. An error ends the export; problems of this record alone are counted.
func (e *exporter) record(ctx context.Context, r client.Record) error {
	name, ok := e.nameOf(r)
	if !ok {
		return nil
	}
	if name == "." || !filepath.IsLocal(name) {
		e.fail(failOutside, name, fmt.Errorf("record %d was not written", r.Key.ID))
		return nil
	}
	name = path.Clean(name)
	if _, twice := e.written.take(hashName(name), struct{}{}); twice {
		e.fail(failTwice, name, fmt.Errorf("record %d in group %s was not written", r.Key.ID, r.Key.Group))
		return nil
	}
	if _, err := e.root.Lstat(name); err == nil && !e.opts.Force {
		e.fail(failThere, name, errors.New("left as it is (--force replaces it)"))
		return nil
	}
	data, closeData, err := e.conn.dataOf(ctx, r)
	if err != nil {
		e.fail(failRead, name, err)
		return ctx.Err()
	}
	defer closeData()
	if err := e.write(name, r, data); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e.fail(failWrite, name, err)
		if errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("no room for %s: %w", displayName(name), err)
		}
		return nil
	}
	e.files.Add(1)
	e.bytes.Add(r.Size)
	if isSymlink(r) {
		e.symlinks.Add(1)
	}
	return nil
}

func isSymlink(r client.Record) bool { return string(r.Attributes[attributeType]) == "symlink" }

// nameOf returns the path of a record; false: the record is not exported.
func (e *exporter) nameOf(r client.Record) (string, bool) {
	p, ok := r.Attributes[attributePath]
	if !ok {
		if e.opts.Prefix != "" {
			return "", false
		}
		e.noPath.Add(1)
		return path.Join(noPathDir, r.Key.Group, strconv.FormatInt(r.Key.ID, 10)), true
	}
	name := string(p)
	if e.opts.Prefix == "" {
		return name, true
	}
	return strings.CutPrefix(name, e.opts.Prefix+"/")
}

func (e *exporter) fail(kind, name string, err error) {
	e.failed.add(failure{Kind: kind, Path: name, What: Describe(err, "")}, e.out)
}

// write writes a temporary file and renames it, so that the name never has a partial file.
func (e *exporter) write(name string, r client.Record, data io.Reader) (err error) {
	dir := path.Dir(name)
	if dir != "." {
		if err := e.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	aside := path.Join(dir, fmt.Sprintf(".sheaf-export-%x", client.NewRequestID()))
	defer func() {
		if err != nil {
			_ = e.root.Remove(aside) // it may not exist
		}
	}()
	if isSymlink(r) {
		target, err := io.ReadAll(io.LimitReader(data, unix.PathMax))
		if err != nil {
			return err
		}
		if err := e.root.Symlink(string(target), aside); err != nil {
			return err
		}
	} else if err := e.writeFile(aside, r, data); err != nil {
		return err
	}
	if err := e.setTime(aside, r); err != nil {
		return err
	}
	return e.root.Rename(aside, name)
}

func (e *exporter) writeFile(aside string, r client.Record, data io.Reader) (err error) {
	f, err := e.root.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if n, err := io.Copy(f, data); err != nil {
		return err
	} else if n != r.Size {
		return fmt.Errorf("%d bytes came of %d", n, r.Size)
	}
	return f.Chmod(modeOf(r))
}

// modeOf returns the mode that import stored; 0644 if there is none.
func modeOf(r client.Record) fs.FileMode {
	bits, err := strconv.ParseUint(string(r.Attributes[attributeMode]), 8, 12)
	if err != nil {
		return 0o644
	}
	mode := fs.FileMode(bits & 0o777)
	for bit, m := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= m
		}
	}
	return mode
}

// mtimeOf returns the time that import stored, else the record's timestamp.
func mtimeOf(r client.Record) unix.Timespec {
	seconds, nanos, ok := strings.Cut(string(r.Attributes[attributeMtime]), ".")
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	n, err2 := strconv.ParseInt(nanos, 10, 64)
	if !ok || err1 != nil || err2 != nil || n < 0 || n >= 1e9 {
		return unix.NsecToTimespec(r.Timestamp.UnixNano())
	}
	return unix.Timespec{Sec: s, Nsec: n}
}

// setTime sets the time of the file or link itself. It opens the folder below root, and the name has no slash, so
// nothing outside can be changed.
func (e *exporter) setTime(name string, r client.Record) error {
	dir, err := e.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a descriptor of a folder
	t := mtimeOf(r)
	if err := unix.UtimesNanoAt(int(dir.Fd()), path.Base(name), []unix.Timespec{t, t},
		unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("setting the time: %w", err)
	}
	return nil
}
