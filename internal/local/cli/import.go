package cli

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"sheaf.dev/sheaf/client"
)

// The attributes that import writes and export reads.
const (
	attributePath  = "path"  // below the imported folder, with the prefix; slash-separated, bytes as in the file system
	attributeMode  = "mode"  // permission bits with setuid, setgid and sticky, octal: "0644"
	attributeMtime = "mtime" // modification time, Unix seconds and nanoseconds: "1700000000.000000001"
	attributeType  = "type"  // "symlink" where the data is the target of a symbolic link; absent for files
)

// Limits of an import. Memory stays below about the sum of importBytesMax, one chunk per upload, and gRPC's buffers.
const (
	importBytesMax = 32 << 20 // bytes of files that are read but not yet stored
	importUploads  = 2        // concurrent uploads of files above 1 MiB
	importLookUps  = 4        // concurrent lookups of existing files
	batchBytes     = 1 << 20  // a batch is sent when it has this size
	batchPuts      = 256      // or this many puts
	// time that the client may take for a batch, until its results are processed
	batchPatience    = 30 * time.Second
	importPatience   = 60 * time.Second // time with a server that stores nothing at all
	reportedFailures = 20               // number of failures of each kind that are printed; --failures lists all
	requestIDSize    = 16
)

// ImportOptions are the options of Import.
type ImportOptions struct {
	Dir      string
	ID       string // name, sequence, hash, map:FILE
	Group    string // Named routing: dir, or a name; empty in Hash routing
	Prefix   string // put before every path
	ImportID string // part of the request ids; empty: made from folder, prefix and id scheme with Resume, else random
	FirstID  int64  // the first id of sequence
	Workers  int    // number of file readers; 0: 16
	Senders  int    // number of streams that send puts; 0: 8
	DryRun   bool
	Resume   bool   // leave files that an earlier import stored as they are
	Update   bool   // also store changed files as new versions
	Symlinks string // keep or skip
	Failures string // file for the list of all failures, JSON lines
	Quiet    bool   // no progress

	knownIDs map[nameHash]int64 // sequence with Resume: ids assigned before, by path
}

// Kinds of failures of an import.
const (
	failUnreadable = "unreadable"
	failNoID       = "no id"
	failCollision  = "collision"
	failExists     = "exists already"
	failChanged    = "changed since it was imported"
	failRefused    = "refused by the server"
)

// failure is one file that was not imported.
type failure struct {
	Kind string `json:"kind"`
	Path string `json:"path"`
	What string `json:"what"`
}

// ImportReport is the result of an import.
type ImportReport struct {
	DryRun       bool    `json:"dry_run,omitempty"`
	Stored       int64   `json:"stored"`
	StoredBytes  int64   `json:"stored_bytes"`
	AlreadyThere int64   `json:"already_there"`
	Updated      int64   `json:"updated"`
	Empty        int64   `json:"empty"`
	Symlinks     int64   `json:"symlinks"`
	Large        int64   `json:"large"`
	Skipped      int64   `json:"skipped"` // sockets, devices, pipes, and links with --symlinks skip
	Failed       Failed  `json:"failed,omitempty"`
	Seconds      float64 `json:"seconds"`
	ImportID     string  `json:"import_id,omitempty"`
}

// importer is one import in progress. Files pass these stages: walk -> (look up what exists) -> read -> send in
// batches.
type importer struct {
	opts ImportOptions
	conn *Conn
	out  *Output
	ids  idScheme
	// fresh: no other import has this import id, so a repeated put comes from this run (the gateway also retries
	// puts).
	fresh bool

	jobs    chan job
	puts    chan *put
	memory  *semaphore.Weighted // bytes, of importBytesMax
	uploads *semaphore.Weighted
	failed  failures

	stored, storedBytes, there, updated atomic.Int64
	empty, symlinks, large, skipped     atomic.Int64
	seenFiles, seenBytes                atomic.Int64 // processed, whatever the outcome
	totalFiles, totalBytes              atomic.Int64
	totalKnown                          atomic.Bool
	lastSuccess                         atomic.Int64               // Unix ns of the server's last answer
	taken                               firsts[client.Key, string] // paths by id; dry run only
}

// job is a file to be read.
type job struct {
	item Item
	key  client.Key
	// ifVersion is the version of the record in which Update found an older state of this file; empty: none.
	ifVersion string
}

// Import imports a tree into the store. The report is valid even if an error ends the import. Files that fail do not
// end it: they are counted and listed.
func Import(ctx context.Context, conn *Conn, out *Output, opts ImportOptions) (ImportReport, error) {
	im := &importer{opts: opts, conn: conn, out: out}
	if err := im.prepare(ctx); err != nil {
		return ImportReport{}, err
	}
	begin := time.Now()
	err := im.run(ctx)
	report := im.report()
	report.Seconds = time.Since(begin).Seconds()
	if closeErr := im.failed.close(); err == nil {
		err = closeErr
	}
	return report, err
}

func (im *importer) prepare(ctx context.Context) error {
	o := &im.opts
	if o.Dir == "" {
		return Usagef("the folder to import has no name")
	}
	if info, err := os.Stat(o.Dir); err != nil {
		return fmt.Errorf("the folder to import: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("the folder to import: %s is not a folder", displayName(o.Dir))
	}
	if o.Prefix != "" {
		o.Prefix = path.Clean(o.Prefix)
		if !filepath.IsLocal(o.Prefix) {
			return Usagef("--prefix %q: must be a relative path without \"..\"", o.Prefix)
		}
	}
	if o.Symlinks != "keep" && o.Symlinks != "skip" {
		return Usagef("--symlinks %q: must be keep or skip", o.Symlinks)
	}
	if err := errors.Join(count("workers", &o.Workers, 16), count("senders", &o.Senders, 8),
		checkIDScheme(o.ID)); err != nil {
		return err
	}
	if !o.DryRun {
		if err := im.checkGroup(ctx); err != nil {
			return err
		}
		if o.ID == "sequence" && (o.Resume || o.Update) {
			if err := im.readKnownIDs(ctx); err != nil {
				return err
			}
		}
	}
	im.fresh = o.ImportID == "" && !o.Resume && !o.Update
	if err := o.chooseImportID(); err != nil {
		return err
	}
	ids, err := o.newIDScheme()
	if err != nil {
		return err
	}
	im.ids = ids
	im.jobs = make(chan job, 1024)
	im.puts = make(chan *put, 1024)
	im.memory = semaphore.NewWeighted(importBytesMax)
	im.uploads = semaphore.NewWeighted(importUploads)
	return im.failed.open(o.Failures)
}

// chooseImportID chooses the import id. A first import takes a random one, so that files deleted since an earlier
// import are stored again. A resumed import takes one that is the same for the same folder, prefix and scheme.
func (o *ImportOptions) chooseImportID() error {
	if o.ImportID != "" {
		return nil
	}
	if !o.Resume && !o.Update {
		o.ImportID = fmt.Sprintf("%x", client.NewRequestID())
		return nil
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("the folder to import: %w", err)
	}
	o.ImportID = strings.Join([]string{dir, o.Prefix, o.ID, o.Group}, "\x00")
	return nil
}

// checkGroup checks that --group fits the store's routing, before any file is read.
func (im *importer) checkGroup(ctx context.Context) error {
	named, err := im.conn.Named(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("asking for the routing: %w", err)
	case named && im.opts.Group == "":
		return Usagef("this store has Named routing: say which group with --group dir or --group NAME")
	case !named && im.opts.Group != "":
		return Usagef("this store has Hash routing, where the id decides the group: leave --group out")
	}
	return nil
}

// readKnownIDs reads the ids that an earlier import with --id sequence assigned, by path.
func (im *importer) readKnownIDs(ctx context.Context) error {
	im.opts.knownIDs = map[nameHash]int64{}
	for r, err := range im.conn.Scan(ctx, &client.ScanOptions{MetadataOnly: true}) {
		if err != nil {
			return fmt.Errorf("scanning: %w", err)
		}
		if p, ok := r.Attributes[attributePath]; ok {
			id := r.Key.ID
			im.opts.knownIDs[hashName(string(p))] = id
			if id >= im.opts.FirstID && id < 1<<63-1 {
				im.opts.FirstID = id + 1
			}
		}
	}
	return nil
}

func (im *importer) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	im.lastSuccess.Store(time.Now().UnixNano())
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		im.count(ctx)
	}()
	progress := im.startProgress()

	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(im.jobs)
		return Walk(gctx, im.opts.Dir, 4, im.opts.ID == "sequence", func(item Item) error { return im.found(gctx, item) })
	})
	ready := im.jobs
	if (im.opts.Resume || im.opts.Update) && !im.opts.DryRun {
		// Files that the server already has need not be read or sent.
		ready = make(chan job, 64)
		stage(gctx, g, importLookUps, func(ctx context.Context) error {
			return im.lookUp(ctx, ready)
		}, func() { close(ready) })
	}
	stage(gctx, g, im.opts.Workers, func(ctx context.Context) error {
		return im.readAll(ctx, ready)
	}, func() { close(im.puts) })
	for range im.opts.Senders {
		g.Go(func() error { return im.send(gctx) })
	}
	err := g.Wait()
	cancel(nil)
	<-counted
	progress.stop()
	return err
}

// stage runs do in this many workers, and calls through when all have ended.
func stage(ctx context.Context, g *errgroup.Group, workers int, do func(context.Context) error, through func()) {
	g.Go(func() error {
		defer through()
		all, ctx := errgroup.WithContext(ctx)
		for range workers {
			all.Go(func() error { return do(ctx) })
		}
		return all.Wait()
	})
}

// readAll reads files as long as there are any.
func (im *importer) readAll(ctx context.Context, ready <-chan job) error {
	for j := range ready {
		if err := im.read(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

// found processes an item of the walk: it assigns id and group and passes the item on.
func (im *importer) found(ctx context.Context, item Item) error {
	switch {
	case item.Err != nil:
		im.fail(failUnreadable, item.Path, item.Err)
		return nil //nolint:nilerr // it is counted and listed
	case item.Type.IsRegular(), item.Type == fs.ModeSymlink && im.opts.Symlinks == "keep":
	default:
		im.skipped.Add(1)
		im.seenFiles.Add(1)
		return nil
	}
	id, err := im.ids(item.Path)
	if err != nil {
		im.fail(failNoID, item.Path, err)
		return nil
	}
	j := job{item: item, key: client.Key{ID: id, Group: im.opts.groupOf(item.Path)}}
	select {
	case im.jobs <- j:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// count counts files and bytes, for the progress display only. It runs in parallel to the import, which then finds the
// inodes in the cache.
func (im *importer) count(ctx context.Context) {
	err := Walk(ctx, im.opts.Dir, 2, false, func(item Item) error {
		im.totalFiles.Add(1)
		if item.Err == nil && item.Type.IsRegular() {
			if info, err := os.Lstat(im.fileName(item.Path)); err == nil {
				im.totalBytes.Add(info.Size())
			}
		}
		return nil
	})
	im.totalKnown.Store(err == nil)
}

func (im *importer) fileName(rel string) string {
	return filepath.Join(im.opts.Dir, filepath.FromSlash(rel))
}

// requestID returns the same id for the same file of the same import as long as the file does not change.
func (im *importer) requestID(name string, size int64, mtime string) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%s", im.opts.ImportID, name, size, mtime))
	return sum[:requestIDSize]
}

func (im *importer) fail(kind, rel string, err error) {
	im.seenFiles.Add(1)
	im.failed.add(failure{Kind: kind, Path: rel, What: whatOf(err)}, im.out)
}

func (im *importer) report() ImportReport {
	return ImportReport{
		DryRun: im.opts.DryRun, Stored: im.stored.Load(), StoredBytes: im.storedBytes.Load(), AlreadyThere: im.there.Load(),
		Updated: im.updated.Load(), Empty: im.empty.Load(), Symlinks: im.symlinks.Load(), Large: im.large.Load(),
		Skipped: im.skipped.Load(), Failed: im.failed.counts(),
	}
}

// whatOf returns the text of an error without the path, which is already printed.
func whatOf(err error) string {
	if p, ok := err.(*fs.PathError); ok { //nolint:errorlint // one that is wrapped is told in the words around it
		return p.Op + ": " + p.Err.Error()
	}
	return Describe(err, "")
}

// Failed counts what failed, by kind.
type Failed map[string]int64

// Total returns the sum over all kinds.
func (f Failed) Total() int64 {
	var n int64
	for _, k := range f {
		n += k
	}
	return n
}

// firsts keeps the first value of each key. Safe for concurrent use.
type firsts[K comparable, V any] struct {
	mu sync.Mutex
	m  map[K]V
}

// take returns the first value of the key, and true; if there is none, it stores the value.
func (f *firsts[K, V]) take(key K, value V) (first V, taken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first, taken = f.m[key]; !taken {
		if f.m == nil {
			f.m = map[K]V{}
		}
		f.m[key] = value
	}
	return first, taken
}

// failures counts and lists what failed. Safe for concurrent use.
type failures struct {
	mu   sync.Mutex
	n    Failed
	file io.WriteCloser
	err  error
}

func (f *failures) open(name string) error {
	f.n = Failed{}
	if name == "" {
		return nil
	}
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("the list of failures: %w", err)
	}
	f.file = file
	return nil
}

func (f *failures) add(one failure, out *Output) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n[one.Kind]++
	switch n := f.n[one.Kind]; {
	case n <= reportedFailures:
		out.Sayf("%s: %s: %s", one.Kind, shortName(one.Path), one.What)
	case n == reportedFailures+1:
		out.Sayf("%s: more follow; --failures FILE lists all", one.Kind)
	}
	if f.file == nil {
		return
	}
	line, err := json.Marshal(one)
	if err == nil {
		_, err = f.file.Write(append(line, '\n'))
	}
	f.err = errors.Join(f.err, err)
}

func (f *failures) counts() Failed {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.n)
}

func (f *failures) close() error {
	if f.file == nil {
		return nil
	}
	if err := errors.Join(f.err, f.file.Close()); err != nil {
		return fmt.Errorf("the list of failures: %w", err)
	}
	return nil
}
