// Package parquetcli exports records as Parquet files, and imports Parquet files. It is apart from package cli so that
// only the program sheaf has the library for Parquet.
package parquetcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Source is the part of the client that an export needs.
type Source interface {
	StoreUUID(ctx context.Context) (string, error)
	OpenView(ctx context.Context, groups []string, expires time.Duration) (client.View, error)
	RenewView(ctx context.Context, id string, expires time.Duration) (client.View, error)
	CloseView(ctx context.Context, id string) error
	PlanScan(ctx context.Context, options *client.PlanScanOptions) ([]client.Split, error)
	Scan(ctx context.Context, options *client.ScanOptions) iter.Seq2[client.Record, error]
	Download(ctx context.Context, key client.Key, to io.Writer, options *client.DownloadOptions) (client.Record, error)
}

// ExportOptions are the options of Export.
type ExportOptions struct {
	Dir     string        // created if it does not exist
	Group   string        // export only this group; if empty, all groups
	Expires time.Duration // how long the view outlives an export that was killed; 1 minute to 30 days
	Workers int           // number of files that are written at a time; 0 means 2
	// SplitBytes is the target size of the data of a file, 1 MiB to 1 TiB; 0 means 256 MiB.
	SplitBytes int64
	Failures   string // file for the list of all failures, in JSON lines
	Quiet      bool
}

// These are the kinds of failures of an export.
const (
	failNoData  = "without data"
	failDamaged = "damaged"
)

// ExportReport is the result of an export. Numbers include the files that an earlier run has written.
type ExportReport struct {
	View      string     `json:"view"`
	Complete  bool       `json:"complete"`
	Files     int64      `json:"files"`
	Earlier   int64      `json:"earlier"` // files that an earlier run has written
	Records   int64      `json:"records"`
	Bytes     int64      `json:"bytes"`     // of the data
	FileBytes int64      `json:"fileBytes"` // of the Parquet files
	NoData    int64      `json:"noData"`    // rows without data, with a status
	Damaged   int64      `json:"damaged"`   // files that lack records whose stored bytes are bad
	Failed    cli.Failed `json:"failed,omitempty"`
	Seconds   float64    `json:"seconds"`
}

// exporter runs one export.
type exporter struct {
	target
	opts   ExportOptions
	source Source
	out    *cli.Output
	failed *cli.FailureList

	manifest *manifest
	expires  atomic.Int64 // Unix time in nanoseconds at which the view expires

	mu      sync.Mutex // guards journal and done
	journal *journal
	done    map[string]result

	earlier        int64        // number of files that an earlier run has written
	records, bytes atomic.Int64 // for the progress
}

// Export writes a view of the store as Parquet files, one for each split, and a manifest. If the folder has an export
// that did not end, Export writes only the files that are missing, of the same view. The report is valid if its View is
// not empty, even if an error ends the export.
func Export(ctx context.Context, fsys vfs.FS, source Source, out *cli.Output, opts ExportOptions) (report ExportReport,
	err error) {
	if err := cli.Concurrency("workers", &opts.Workers, 2); err != nil {
		return report, err
	}
	if opts.Dir == "" {
		return report, cli.Usagef("the folder to export to has no name")
	}
	if opts.Expires < time.Minute || opts.Expires > 30*24*time.Hour {
		return report, cli.Usagef("--view-expires %v: must be 1m to 720h", opts.Expires)
	}
	if opts.SplitBytes != 0 && (opts.SplitBytes < 1<<20 || opts.SplitBytes > 1<<40) {
		return report, cli.Usagef("--split-bytes %d: must be %d to %d", opts.SplitBytes, 1<<20, int64(1)<<40)
	}
	e := &exporter{target: target{fsys, opts.Dir}, opts: opts, source: source, out: out}
	begin := time.Now()
	if err := fsys.MkdirAll(opts.Dir); err != nil {
		return report, fmt.Errorf("the folder to export to: %w", err)
	}
	lock, err := fsys.Lock(e.at(lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return report, fmt.Errorf("another export writes to %s: wait until it has ended", opts.Dir)
	}
	if err != nil {
		return report, fmt.Errorf("the folder to export to: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if e.failed, err = cli.NewFailureList(opts.Failures, out); err != nil {
		return report, err
	}
	err = e.export(ctx)
	report = e.report()
	report.Seconds = max(time.Since(begin).Seconds(), 1e-9)
	if closeErr := e.failed.Close(); err == nil {
		err = closeErr
	}
	return report, err
}

func (e *exporter) export(ctx context.Context) error {
	store, err := e.source.StoreUUID(ctx)
	if err != nil {
		return fmt.Errorf("asking for the store: %w", err)
	}
	switch e.manifest, err = e.readManifest(); {
	case errors.Is(err, errNoManifest):
		if err := e.begin(ctx, store); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if err := e.resume(ctx, store); err != nil {
			return err
		}
	}
	if !e.manifest.Complete {
		if err := e.run(ctx); err != nil {
			return err
		}
		if err := e.finish(); err != nil {
			return err
		}
	}
	e.clean()
	e.closeView(ctx, e.manifest.View)
	_ = e.fsys.Remove(e.at(lockName)) // a lock that stays is used by the next run
	return nil
}

// begin opens a view, plans the files and writes the manifest.
func (e *exporter) begin(ctx context.Context, store string) error {
	var groups []string
	if e.opts.Group != "" {
		groups = []string{e.opts.Group}
	}
	view, err := e.source.OpenView(ctx, groups, e.opts.Expires)
	if err != nil {
		return fmt.Errorf("opening a view: %w", err)
	}
	m := &manifest{Format: manifestFormat, Version: manifestVersion, Store: store, View: view.ID, Group: e.opts.Group,
		Opened: cli.FormatTime(view.Opened), Files: []fileInfo{}}
	e.expires.Store(view.Expires.UnixNano())
	if err := e.plan(ctx, m); err != nil {
		// The view must not be closed while a manifest may name it: the next run would find an export that cannot go on.
		if err := e.fsys.Remove(e.at(manifestName)); err == nil || errors.Is(err, fs.ErrNotExist) {
			e.closeView(context.WithoutCancel(ctx), view.ID)
		}
		return err
	}
	e.manifest, e.done = m, map[string]result{}
	if e.journal, err = e.openJournal(e.done); err != nil {
		return e.viewError(err)
	}
	return nil
}

// plan adds the files to a manifest, and writes it.
func (e *exporter) plan(ctx context.Context, m *manifest) error {
	splits, err := e.source.PlanScan(ctx, &client.PlanScanOptions{View: m.View, SplitBytes: e.opts.SplitBytes,
		Shared: true})
	if err != nil {
		return fmt.Errorf("planning the files: %w", err)
	}
	for i, s := range splits {
		m.Files = append(m.Files, fileInfo{Name: fileName(i), Group: s.Group, Split: s.Token})
	}
	if err := e.writeManifest(m); err != nil {
		return fmt.Errorf("writing the manifest: %w", err)
	}
	return nil
}

// resume continues the export in the folder, if it is one of this store.
func (e *exporter) resume(ctx context.Context, store string) error {
	m := e.manifest
	if m.Store != store {
		return fmt.Errorf("the export in %s is of store %s, and --server is of store %s: give the server of that store, or "+
			"another folder", e.dir, m.Store, store)
	}
	if m.Group != e.opts.Group {
		return cli.Usagef("the export in %s is of %s: give the same --group as then, or another folder", e.dir,
			groupWords(m.Group))
	}
	if m.Complete {
		return e.checkComplete()
	}
	view, err := e.source.RenewView(ctx, m.View, e.opts.Expires)
	if err != nil {
		return e.viewError(fmt.Errorf("renewing the view: %w", err))
	}
	for group, why := range view.Lost {
		return e.viewError(fmt.Errorf("%w: group %s: %s", client.ErrViewExpired, group, why))
	}
	e.expires.Store(view.Expires.UnixNano())
	if e.done, err = e.readJournal(); err != nil {
		return e.viewError(err)
	}
	e.clean()
	if e.journal, err = e.openJournal(e.done); err != nil {
		return e.viewError(err)
	}
	return nil
}

func groupWords(group string) string {
	if group == "" {
		return "all groups"
	}
	return "group " + group
}

// checkComplete makes sure that a complete export still has its files.
func (e *exporter) checkComplete() error {
	e.done = map[string]result{}
	for _, f := range e.manifest.Files {
		if err := e.hasFile(f.Name, f.FileBytes); err != nil {
			return fmt.Errorf("the export in %s was complete, and its view %s is closed, but a file has changed: %w. Export to "+
				"another folder", e.dir, e.manifest.View, err)
		}
		e.done[f.Name] = f.result
	}
	e.earlier = int64(len(e.done))
	return nil
}

// run writes the files that are missing, while it renews the view.
func (e *exporter) run(ctx context.Context) error {
	e.earlier = int64(len(e.done))
	for _, r := range e.done {
		e.records.Add(r.Records)
		e.bytes.Add(r.Bytes)
	}
	if e.earlier > 0 {
		e.out.Sayf("going on with view %s: %d of %s are there", e.manifest.View, e.earlier,
			cli.Count(int64(len(e.manifest.Files)), "file", "files"))
	}
	stop := cli.ShowProgress(e.out, e.opts.Quiet, "exported", "records", func() (int64, int64) {
		return e.records.Load(), e.bytes.Load()
	})
	defer stop()
	renewing, cancel := context.WithCancelCause(ctx)
	var renewal sync.WaitGroup
	renewal.Go(func() { e.renew(renewing, cancel) })
	files, each := errgroup.WithContext(renewing)
	files.SetLimit(e.opts.Workers)
	missing := slices.DeleteFunc(slices.Clone(e.manifest.Files), func(f fileInfo) bool {
		_, ok := e.done[f.Name]
		return ok
	}) // before the first file is written, because each one is added to done
	for _, f := range missing {
		files.Go(func() error {
			if each.Err() != nil {
				return context.Cause(each)
			}
			return e.file(each, f)
		})
	}
	err := files.Wait()
	if cause := context.Cause(renewing); cause != nil && ctx.Err() == nil {
		err = cause // the view has ended, which is why the files have failed
	}
	cancel(nil)
	renewal.Wait()
	if closeErr := e.journal.file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return e.viewError(err)
	}
	return nil
}

// finish writes the manifest with the results. From then on the export is complete.
func (e *exporter) finish() error {
	m := *e.manifest
	m.Files = make([]fileInfo, len(e.manifest.Files))
	m.Complete = true
	for i, f := range e.manifest.Files {
		r := e.done[f.Name]
		m.Files[i] = fileInfo{Name: f.Name, Group: f.Group, result: r}
		m.Records += r.Records
		m.Bytes += r.Bytes
		m.NoData += r.NoData
	}
	if err := e.writeManifest(&m); err != nil {
		return e.viewError(fmt.Errorf("writing the manifest: %w", err))
	}
	e.manifest = &m
	return nil
}
