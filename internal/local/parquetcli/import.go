package parquetcli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/parquetfile"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Sink is the part of the client that an import needs.
type Sink interface {
	Named(ctx context.Context) (bool, error)
	BatchPut(ctx context.Context, items []client.PutItem) []client.PutOutcome
	BatchGet(ctx context.Context, items []client.GetItem) []client.GetOutcome
}

// ImportOptions are the options of Import.
type ImportOptions struct {
	Files []string
	ID    string // the column with the ids
	Data  string // the column with the data
	// Group is the group of all rows, or "column:NAME" for a column with the group of each row, with Named routing. With
	// Hash routing it is empty.
	Group    string
	ImportID string // part of request ids; if empty, it is random
	Senders  int    // number of streams that send puts; 0 means 8
	DryRun   bool   // store nothing; only check the rows, and ask the store which ids are taken
	Resume   bool   // a record that is there with the same data is no failure
	Failures string // file for the list of all failures, in JSON lines
	Quiet    bool
}

// Unreadable is the kind of failures of an import that concern files. All other kinds concern rows.
const Unreadable = "unreadable"

// These are the kinds of failures of rows.
const (
	failBadRow  = "bad row"
	failExists  = "exists already"
	failOther   = "exists with other data"
	failRefused = "refused by the server"
)

// ImportReport is the result of an import.
type ImportReport struct {
	DryRun       bool       `json:"dryRun,omitempty"`
	Rows         int64      `json:"rows"` // rows that were read
	Stored       int64      `json:"stored"`
	StoredBytes  int64      `json:"storedBytes"`
	AlreadyThere int64      `json:"alreadyThere"`
	Failed       cli.Failed `json:"failed,omitempty"`
	Seconds      float64    `json:"seconds"`
}

// importer runs one import. One goroutine reads the rows. Each sender has a queue, and all rows of one id go to the
// same queue, so the first of several rows with an id is the one that is stored.
type importer struct {
	opts   ImportOptions
	fsys   vfs.FS
	sink   Sink
	failed *cli.FailureList
	files  []*openFile
	group  string // the group of all rows
	column string // the column with groups

	rows, stored, storedBytes, there atomic.Int64
	lastSuccess                      atomic.Int64 // time of the server's last answer, in Unix ns
}

// openFile is a file that is imported.
type openFile struct {
	name    string
	file    vfs.File
	parquet *parquetfile.File
}

// Import stores the rows of Parquet files as records. It reads no row before the columns of all files have been
// checked. The report is valid if its Seconds is above 0, even if an error ends the import. A row that cannot be stored
// does not end the import, but is counted and listed.
func Import(ctx context.Context, fsys vfs.FS, sink Sink, out *cli.Output, opts ImportOptions) (ImportReport, error) {
	if err := cli.Concurrency("senders", &opts.Senders, 8); err != nil {
		return ImportReport{}, err
	}
	im := &importer{opts: opts, fsys: fsys, sink: sink}
	defer im.close()
	if err := im.prepare(ctx); err != nil {
		return ImportReport{}, err
	}
	var err error
	if im.failed, err = cli.NewFailureList(opts.Failures, out); err != nil {
		return ImportReport{}, err
	}
	begin := time.Now()
	verb := "imported"
	if opts.DryRun {
		verb = "looked at"
	}
	stop := cli.ShowProgress(out, opts.Quiet, verb, "rows", func() (int64, int64) {
		return im.rows.Load(), im.storedBytes.Load()
	})
	err = im.run(ctx)
	stop()
	if closeErr := im.failed.Close(); err == nil {
		err = closeErr
	}
	return ImportReport{DryRun: opts.DryRun, Rows: im.rows.Load(), Stored: im.stored.Load(),
		StoredBytes: im.storedBytes.Load(), AlreadyThere: im.there.Load(), Failed: im.failed.Counts(),
		Seconds: max(time.Since(begin).Seconds(), 1e-9)}, err
}

// prepare checks the options and the files, before anything is stored.
func (im *importer) prepare(ctx context.Context) error {
	o := &im.opts
	switch {
	case len(o.Files) == 0:
		return cli.Usagef("name the Parquet files to import")
	case o.ID == "" || o.Data == "":
		return cli.Usagef("--format parquet needs --id COLUMN and --data COLUMN")
	}
	column, isColumn := strings.CutPrefix(o.Group, "column:")
	if isColumn && column == "" {
		return cli.Usagef("--group column: needs the name of a column")
	}
	if isColumn {
		im.column = column
	} else {
		im.group = strings.TrimPrefix(o.Group, "name:")
	}
	for _, name := range o.Files {
		if err := im.open(name); err != nil {
			return cli.Usagef("%s: %w. Nothing was stored", name, err)
		}
	}
	named, err := im.sink.Named(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("asking for the routing: %w", err)
	case named && o.Group == "":
		return cli.Usagef("this store has Named routing: say which group with --group NAME or --group column:COLUMN")
	case !named && o.Group != "":
		return cli.Usagef("this store has Hash routing, where the id decides the group: leave --group out")
	}
	if o.ImportID == "" {
		o.ImportID = fmt.Sprintf("%x", client.NewRequestID())
	}
	return nil
}

// open opens a file and checks its columns.
func (im *importer) open(name string) error {
	info, err := im.fsys.Stat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is no file")
	}
	f, err := im.fsys.Open(name)
	if err != nil {
		return err
	}
	one := &openFile{name: name, file: f}
	im.files = append(im.files, one)
	size, err := f.Size()
	if err != nil {
		return err
	}
	if one.parquet, err = parquetfile.Open(f, size); err != nil {
		return err
	}
	return one.parquet.Check(im.selection())
}

func (im *importer) selection() parquetfile.Selection {
	return parquetfile.Selection{ID: im.opts.ID, Data: im.opts.Data, Group: im.column}
}

func (im *importer) close() {
	for _, f := range im.files {
		_ = f.file.Close() // was only read
	}
}

// run reads the files, one after another, and sends their rows.
func (im *importer) run(ctx context.Context) error {
	im.lastSuccess.Store(time.Now().UnixNano())
	g, gctx := errgroup.WithContext(ctx)
	queues := make([]*queue, im.opts.Senders)
	for i := range queues {
		q := &queue{batches: make(chan []*put)}
		queues[i] = q
		g.Go(func() error { return im.send(gctx, q.batches) })
	}
	g.Go(func() error {
		defer func() {
			for _, q := range queues {
				close(q.batches)
			}
		}()
		for _, f := range im.files {
			if err := im.read(gctx, f, queues); err != nil {
				return err
			}
		}
		for _, q := range queues {
			if err := q.flush(gctx); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// read passes the rows of a file to the queues. A file that cannot be read to its end is a failure, and the other files
// are imported nevertheless.
func (im *importer) read(ctx context.Context, f *openFile, queues []*queue) error {
	var ended error
	err := f.parquet.Read(im.selection(), func(row parquetfile.Row) error {
		im.rows.Add(1)
		if row.Bad != nil {
			im.failed.Add(failBadRow, rowName(f.name, row.Number), row.Bad)
			return nil //nolint:nilerr // the row is counted and listed
		}
		p := im.put(f.name, row)
		ended = queues[uint64(row.ID)*0x9e3779b97f4a7c15>>32%uint64(len(queues))].add(ctx, p)
		return ended
	})
	if ended != nil {
		return ended
	}
	if err != nil {
		im.failed.Add(Unreadable, f.name, err)
	}
	return nil
}

// rowName names a row for messages.
func rowName(file string, number int64) string { return fmt.Sprintf("%s row %d", file, number) }
