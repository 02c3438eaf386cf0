package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
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

// Import writes these attributes, and export reads them.
const (
	attributePath  = "path"  // path below the folder, with the prefix; slash-separated, bytes as in the file system
	attributeMode  = "mode"  // permission bits with setuid, setgid and sticky, octal: "0644"
	attributeMtime = "mtime" // modification time, Unix seconds and nanoseconds: "1700000000.000000001"
	attributeType  = "type"  // "symlink" if the data is the target of a symbolic link; absent for files
)

// These constants limit an import. Its memory stays below about the sum of importBytesMax, one chunk per upload, and
// gRPC's buffers.
const (
	importBytesMax = 32 << 20 // bytes of files that are read but not yet stored
	importUploads  = 2        // concurrent uploads of files above 1 MiB
	importLookUps  = 4        // concurrent lookups of existing files
	batchBytes     = 1 << 20  // a batch is sent when its puts reach this size
	batchPuts      = 256      // a batch is also sent when it has this number of puts
	// time limit of a batch, from sending it to processing its results
	batchPatience  = 30 * time.Second
	importPatience = 60 * time.Second // an import gives up after this time without a stored file
	requestIDSize  = 16
)

// ImportOptions are the options of Import.
type ImportOptions struct {
	Dir      string
	ID       string // name, sequence, hash or map:FILE
	Group    string // with Named routing, dir or a name; with Hash routing, empty
	Prefix   string // prepended to every path
	ImportID string // part of request ids; if empty, it is random, or with Resume derived from folder, prefix and scheme
	FirstID  int64  // first id of the scheme sequence
	Workers  int    // number of goroutines that read files; 0 means 16
	Senders  int    // number of streams that send puts; 0 means 8
	DryRun   bool   // store and delete nothing; only compare files with the store, and count them
	Resume   bool   // do not change files that an earlier import stored
	Update   bool   // also store changed files as new versions
	Checksum bool   // with Update: also compare the bytes of files whose size, time and mode are unchanged
	Delete   bool   // with Update: also delete records below Prefix whose path is no longer a file of the tree
	Symlinks string // keep or skip
	Failures string // file for the list of all failures, in JSON lines
	Quiet    bool   // show no progress

	knownIDs map[nameHash]int64 // with Resume and the scheme sequence: the ids that the earlier import assigned, by path
}

// These are the kinds of failures of an import.
const (
	failUnreadable = "unreadable"
	failNoID       = "no id"
	failCollision  = "collision"
	failExists     = "exists already"
	failChanged    = "changed since it was imported"
	failRefused    = "refused by the server"
	failMixed      = "changed while it was read"
	failKept       = "not deleted"
)

// importer runs one import. Files pass these stages: walk, look up existing records, read, and send in batches.
type importer struct {
	opts ImportOptions
	conn *Conn
	out  *Output
	ids  idScheme
	// fresh is true if no other import has this import id. A put that the server reports as repeated was then sent by
	// this run, or repeated by the gateway.
	fresh bool

	root    folder
	jobs    chan job
	puts    chan *put
	memory  *semaphore.Weighted // limits the bytes in memory to importBytesMax
	uploads *semaphore.Weighted
	failed  failures

	stored, storedBytes, there, updated atomic.Int64
	empty, symlinks, large, skipped     atomic.Int64
	deleted                             atomic.Int64
	notKept                             notKept
	found, blind                        atomic.Bool  // whether a file was found, and whether a folder could not be read
	seenFiles, seenBytes                atomic.Int64 // numbers of processed files and bytes, whatever the outcome
	totalFiles, totalBytes              atomic.Int64
	totalKnown                          atomic.Bool
	lastSuccess                         atomic.Int64 // time of the server's last answer, in Unix ns

	takenMu sync.Mutex
	taken   map[client.Key]string // only in a dry run: for each key, the path of the first file that has it
}

// job is a file to be read.
type job struct {
	item Item
	key  client.Key
	// The field there is the file's existing record, if Update is set and the store has one for an older state of the
	// file. The put must replace exactly this version of the record. Otherwise the field is nil.
	there *client.Record
	// The field same means that the record and the file can differ only in their bytes, so the bytes have to be
	// compared.
	same bool
}

// Import imports a tree into the store. The report is valid even if an error ends the import. A file that cannot be
// imported does not end the import, but is counted and listed.
func Import(ctx context.Context, conn *Conn, out *Output, opts ImportOptions) (ImportReport, error) {
	im := &importer{opts: opts, conn: conn, out: out}
	if err := im.prepare(ctx); err != nil {
		return ImportReport{}, err
	}
	defer im.root.close()
	begin := time.Now()
	err := im.run(ctx)
	if err == nil && opts.Delete {
		err = im.deleteGone(ctx)
	}
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
	if (o.Checksum || o.Delete) && !o.Update {
		return Usagef("--checksum and --delete go with --update")
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
	root, err := openFolder(o.Dir)
	if err != nil {
		return fmt.Errorf("the folder to import: %w", err)
	}
	im.root = root
	if err := im.prepareIDs(ctx); err != nil {
		root.close()
		return err
	}
	im.taken = map[client.Key]string{}
	im.jobs = make(chan job, 1024)
	im.puts = make(chan *put, 1024)
	im.memory = semaphore.NewWeighted(importBytesMax)
	im.uploads = semaphore.NewWeighted(importUploads)
	return nil
}

// prepareIDs chooses the id scheme, and opens the list of failures. It asks the server for the necessary information.
func (im *importer) prepareIDs(ctx context.Context) error {
	o := &im.opts
	if err := im.checkGroup(ctx); err != nil {
		return err
	}
	if o.ID == "sequence" && (o.Resume || o.Update) {
		if err := im.readKnownIDs(ctx); err != nil {
			return err
		}
	}
	im.fresh = o.ImportID == "" && (!o.Resume || o.Update)
	if err := o.chooseImportID(); err != nil {
		return err
	}
	var err error
	if im.ids, err = o.newIDScheme(); err != nil {
		return err
	}
	return im.failed.open(o.Failures)
}

// chooseImportID chooses the import id. A first import and an update use a random id, so that files are stored even if
// their records were deleted since an earlier import. A resumed import uses the same import id for the same folder,
// prefix and scheme.
func (o *ImportOptions) chooseImportID() error {
	if o.ImportID != "" {
		return nil
	}
	if !o.Resume || o.Update {
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

// checkGroup checks that --group matches the store's routing, before any file is read.
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
	verb := "imported"
	if im.opts.DryRun {
		verb = "looked at"
	}
	progress := startProgress(im.out, im.opts.Quiet, verb, "files", func() tally {
		return tally{
			files: im.seenFiles.Load(), bytes: im.seenBytes.Load(),
			totalFiles: im.totalFiles.Load(), totalBytes: im.totalBytes.Load(), totalKnown: im.totalKnown.Load(),
		}
	})

	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(im.jobs)
		return Walk(gctx, im.opts.Dir, 4, im.opts.ID == "sequence", func(item Item) error { return im.take(gctx, item) })
	})
	ready := im.jobs
	if im.opts.Resume || im.opts.Update || im.opts.DryRun {
		// Files that the server already has are neither read nor sent.
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

// stage runs do() in the given number of workers, and calls through() when all workers have ended.
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

// readAll imports the files that arrive on the channel ready, until the channel is closed.
func (im *importer) readAll(ctx context.Context, ready <-chan job) error {
	for j := range ready {
		if err := im.read(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

// take processes an item of the walk. It assigns an id and a group to a file or link, and passes it to the readers.
func (im *importer) take(ctx context.Context, item Item) error {
	switch {
	case item.Err != nil:
		im.blind.Store(true)
		im.fail(failUnreadable, item.Path, item.Err)
		return nil //nolint:nilerr // fail has counted and listed the error
	case item.Type.IsDir():
		im.notKept.emptyFolders.Add(1)
		im.seenFiles.Add(1)
		return nil
	case item.Type.IsRegular(), item.Type == fs.ModeSymlink && im.opts.Symlinks == "keep":
	default:
		im.skipped.Add(1)
		im.seenFiles.Add(1)
		return nil
	}
	im.found.Store(true)
	id, err := im.ids(item.Path)
	if err != nil {
		im.fail(failNoID, item.Path, err)
		return nil
	}
	j := job{item: item, key: client.Key{ID: id, Group: im.opts.groupOf(item.Path)}}
	return pass(ctx, im.jobs, j)
}

// pass sends v to a channel, unless ctx ends first.
func pass[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// count counts files and bytes, for the progress display only. It runs in parallel with the import, which then finds
// the inodes in the kernel's cache.
func (im *importer) count(ctx context.Context) {
	err := Walk(ctx, im.opts.Dir, 2, false, func(item Item) error {
		im.totalFiles.Add(1)
		if item.Err == nil && item.Type.IsRegular() {
			if info, err := im.root.lstat(item.Path); err == nil {
				im.totalBytes.Add(info.Size())
			}
		}
		return nil
	})
	im.totalKnown.Store(err == nil)
}

// requestID returns the same id for the same file of the same import while the file does not change.
func (im *importer) requestID(s fileStamp, ifVersion string) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%s\x00%o\x00%s", im.opts.ImportID, s.name, s.size, s.mtime,
		s.mode, ifVersion))
	return sum[:requestIDSize]
}

func (im *importer) fail(kind, rel string, err error) {
	im.seenFiles.Add(1)
	im.failed.add(failure{Kind: kind, Path: rel, What: whatOf(err)}, im.out)
}
