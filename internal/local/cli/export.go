package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
)

// ExportOptions are the options of Export.
type ExportOptions struct {
	Dir      string // created if it does not exist
	Group    string // export only this group; if empty, all groups
	Prefix   string // export only records with paths below this prefix, which is removed from the paths
	Force    bool   // replace existing files
	Setuid   bool   // also restore the setuid, setgid and sticky bits, which any client that writes records can set
	Workers  int    // number of goroutines that write files; 0 means 8
	Failures string // file for the list of all failures, in JSON lines
	Quiet    bool
}

// These are the kinds of failures of an export.
const (
	failThere = "there already"
	failWrite = "cannot be written"
	failRead  = "cannot be read"
	failLink  = "path leads through a symbolic link"
)

// ExportReport is the result of an export.
type ExportReport struct {
	Files      int64   `json:"files"`
	Bytes      int64   `json:"bytes"`
	Symlinks   int64   `json:"symlinks"`
	NoPath     int64   `json:"noPath"`     // records that no import created, written to _records/GROUP/ID
	Privileged int64   `json:"privileged"` // files whose setuid, setgid or sticky bit was left out
	Failed     Failed  `json:"failed,omitempty"`
	Seconds    float64 `json:"seconds"`
}

// exporter runs one export. All files are written below root, and never through a symbolic link.
type exporter struct {
	opts   ExportOptions
	conn   *Conn
	out    *Output
	root   folder
	failed failures
	names  treeNames

	files, bytes, symlinks, noPath, privileged atomic.Int64

	// These counters are only for the progress display. The counter done is the number of scanned records that were
	// processed, whatever their outcome. The counter total is the number of all records. The total size of the files is
	// not known in advance.
	done, total atomic.Int64
	totalKnown  atomic.Bool
}

// Export writes records as files. Records that import created are written to their paths, with mode and time. The scan
// uses one snapshot for each group. A record that cannot be exported does not end the export, but is counted and
// listed.
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
	root, err := openFolder(opts.Dir)
	if err != nil {
		return ExportReport{}, fmt.Errorf("the folder to export to: %w", err)
	}
	defer root.close()
	e := &exporter{opts: opts, conn: conn, out: out, root: root, names: treeNames{prefix: opts.Prefix}}
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
		Privileged: e.privileged.Load(), Failed: e.failed.counts(), Seconds: time.Since(begin).Seconds(),
	}
	if closeErr := e.failed.close(); err == nil {
		err = closeErr
	}
	if err == nil && opts.Prefix != "" && report.Files+report.Failed.Total() == 0 {
		err = NotFoundf("no record has a path below --prefix %q", opts.Prefix)
	}
	return report, err
}

// count asks the server for the number of records. If the request fails, the progress display shows no total.
func (e *exporter) count(ctx context.Context) {
	listed, err := recordv1.AllGroups(ctx, e.conn.Admin, &recordv1.ListGroupsRequest{Group: e.opts.Group})
	if err != nil {
		return
	}
	records := map[string]int64{} // by group; each copy reports a number, and count uses the largest
	for _, g := range listed.GetGroups() {
		records[g.GetGroup()] = max(records[g.GetGroup()], g.GetRecords())
	}
	for _, n := range records {
		e.total.Add(n)
	}
	e.totalKnown.Store(true)
}

// tally returns the current numbers for the progress display. Records count as files. Skipped records count, too,
// because the total includes them.
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
			if err := pass(ctx, records, r); err != nil {
				return err
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

// record writes one record. An error ends the export, whereas problems of a single record are only counted.
func (e *exporter) record(ctx context.Context, r client.Record) error {
	name, failed, ok := e.names.take(r)
	if failed != nil {
		e.failed.add(*failed, e.out)
	}
	if !ok {
		return nil
	}
	err := e.write(ctx, name, r)
	switch link, left := (*linkError)(nil), (*leftError)(nil); {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &left):
		e.fail(left.kind, name, left.err)
		return nil
	case errors.As(err, &link):
		e.fail(failLink, name, link)
		return nil
	default:
		e.fail(failWrite, name, err)
		if errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("no space for %s: %w", displayName(name), err)
		}
		return nil
	}
	e.files.Add(1)
	e.bytes.Add(r.Size)
	if isSymlink(r) {
		e.symlinks.Add(1)
	} else if _, left := modeOf(r, e.opts.Setuid); left {
		e.privileged.Add(1)
	}
	if _, imported := r.Attributes[attributePath]; !imported {
		e.noPath.Add(1)
	}
	return nil
}

// leftError explains why a record was not exported although no write failed.
type leftError struct {
	kind string
	err  error
}

func (e *leftError) Error() string { return e.kind + ": " + e.err.Error() }
func (e *leftError) Unwrap() error { return e.err }

func isSymlink(r client.Record) bool { return string(r.Attributes[attributeType]) == "symlink" }

func (e *exporter) fail(kind, name string, err error) {
	e.failed.add(failure{Kind: kind, Path: name, What: Describe(err, "")}, e.out)
}

// write writes a temporary file and renames it, so that a partial file never has the final name.
func (e *exporter) write(ctx context.Context, name string, r client.Record) (err error) {
	dir, err := e.root.in(path.Dir(name), true)
	if err != nil {
		return err
	}
	defer dir.close()
	base := path.Base(name)
	if there, err := dir.exists(base); err != nil {
		return err
	} else if there && !e.opts.Force {
		return &leftError{failThere, errors.New("left as it is (--force replaces it)")}
	}
	data, closeData, err := e.conn.dataOf(ctx, r)
	if err != nil {
		return &leftError{failRead, err}
	}
	defer closeData()
	aside := fmt.Sprintf(".sheaf-export-%x", client.NewRequestID())
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(int(dir), aside, 0) // may fail, because the temporary file may not exist
		}
	}()
	if isSymlink(r) {
		target, err := io.ReadAll(io.LimitReader(data, unix.PathMax))
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(string(target), int(dir), aside); err != nil {
			return err
		}
	} else if err := e.writeFile(dir, aside, r, data); err != nil {
		return err
	}
	t := mtimeOf(r)
	if err := unix.UtimesNanoAt(int(dir), aside, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("setting the time: %w", err)
	}
	return unix.Renameat(int(dir), aside, int(dir), base)
}

func (e *exporter) writeFile(dir folder, aside string, r client.Record, data io.Reader) (err error) {
	fd, err := openat(int(dir), aside, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), aside)
	defer func() { err = errors.Join(err, f.Close()) }()
	if n, err := io.Copy(f, data); err != nil {
		return err
	} else if n != r.Size {
		return fmt.Errorf("%d bytes came of %d", n, r.Size)
	}
	mode, _ := modeOf(r, e.opts.Setuid)
	return unix.Fchmod(fd, mode)
}

// privileges are the mode bits that change the rights of a file: setuid, setgid and sticky.
const privileges = 0o7000

// modeOf returns the mode that import stored, or 0644 if there is none. If setuid is false, modeOf removes the bits
// in the constant privileges, and the result left reports whether it has removed any. Owners are not restored, so a
// program with these bits would run with the rights of the user who unpacks it instead of those of its original
// owner.
func modeOf(r client.Record, setuid bool) (mode uint32, left bool) {
	bits, err := strconv.ParseUint(string(r.Attributes[attributeMode]), 8, 12)
	switch {
	case err != nil:
		return 0o644, false
	case setuid:
		return uint32(bits), false
	}
	return uint32(bits &^ privileges), bits&privileges != 0
}

// mtimeOf returns the time that import stored, or the record's timestamp if there is no such time.
func mtimeOf(r client.Record) unix.Timespec {
	seconds, nanos, ok := strings.Cut(string(r.Attributes[attributeMtime]), ".")
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	n, err2 := strconv.ParseInt(nanos, 10, 64)
	if !ok || err1 != nil || err2 != nil || n < 0 || n >= 1e9 {
		return unix.NsecToTimespec(r.Timestamp.UnixNano())
	}
	return unix.Timespec{Sec: s, Nsec: n}
}
