package archivecli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/local/cli"
)

// CopyOptions specify which records Copy writes, and how.
type CopyOptions struct {
	At      string // in the syntax of ParseAt; required
	Nearest bool   // if a group's state at the point At cannot be read, copy its state at the nearest readable point
	// IDs lists records, one per line, as an id or GROUP/ID. If IDs is nil, Copy writes all records of Group.
	IDs io.Reader
	// Group is the name or UUID of the group to read. If IDs is set, Group applies to the ids without a group.
	Group     string
	As        string        // name of the group to write to; if empty, the same name as in the archive
	Overwrite bool          // also replace records whose content has changed since
	DryRun    bool          // write nothing, but count the records that would be written
	Rate      int64         // maximum bytes of data written per second; 0 means no limit
	Patience  time.Duration // time limit of each call to the store; 0 means one minute
	Quiet     bool          // do not show progress
}

// CopyTarget is the running store to which Copy writes. *cli.Conn implements it. It must be safe for concurrent use.
type CopyTarget interface {
	// Named reports whether the store has Named routing.
	Named(ctx context.Context) (bool, error)
	BatchGet(ctx context.Context, items []client.GetItem) []client.GetOutcome
	BatchPut(ctx context.Context, items []client.PutItem) []client.PutOutcome
	Upload(ctx context.Context, key client.Key, from io.Reader, options *client.PutOptions) (client.PutResult, error)
	Fetch(ctx context.Context, key client.Key, version string, w io.Writer) (client.Record, error)
}

// CopyReport says what Copy has done. Even if Copy ended early, the report is exact, except for writes whose responses
// were lost.
type CopyReport struct {
	DryRun       bool        `json:"dryRun,omitempty"`
	Groups       []CopyGroup `json:"groups"`
	Written      int64       `json:"written"` // records that were written; with DryRun, those that would be written
	WrittenBytes int64       `json:"writtenBytes"`
	Replaced     int64       `json:"replaced"`     // of the records in Written, those that replaced other content
	AlreadyThere int64       `json:"alreadyThere"` // records whose present content is the same as in the archive
	Different    int64       `json:"different"`    // records that were left unchanged although their content differs
	AbsentThen   int64       `json:"absentThen"`   // requested ids that had no record at that point
	Seconds      float64     `json:"seconds"`
}

// CopyGroup is a group that Copy has read.
type CopyGroup struct {
	Group string `json:"group"`
	UUID  string `json:"uuid"`
	Index uint64 `json:"index"` // index in the group's history whose state was read
	// Nearest says which other point was used instead of the requested one, and why. It is empty if the requested point
	// was used.
	Nearest string `json:"nearest,omitempty"`
}

// These constants limit a copy. Its memory is bounded by copySenders batches, plus 1 MiB for each large record.
const (
	copySenders     = 4
	copyBatchPuts   = 256
	copyBatchBytes  = 1 << 20
	copyPatience    = time.Minute
	copyTries       = 3 // attempts to write a record that somebody else creates or deletes at the same time
	copyLargeBytes  = 1 << 20
	copyRateBurst   = 1 << 20
	copyRateMin     = 1 << 10
	copyDifferences = 5 // number of records with different content that are named in messages
)

// copier holds the state of a copy in progress.
type copier struct {
	to     CopyTarget
	out    *cli.Output
	opts   CopyOptions
	named  bool // whether the store has Named routing
	limit  *rate.Limiter
	report *CopyReport

	batches chan []copyItem

	written, writtenBytes, replaced, there, different, seen atomic.Int64
}

// copyItem is a record that is being copied from the archive into the store.
type copyItem struct {
	version reader.Version
	record  client.Record // the version as a record, with the key that it has in the store
}

// Copy writes records of an archive, as they were at a point in time, into a running store, using ordinary puts. It
// does not write records whose present content is the same. If the present content of a record differs, Copy replaces
// the record only if Overwrite is set; otherwise it leaves the record unchanged and returns an error at the end. A
// copy that was interrupted is simply repeated. The records that it has already written are then found to be the same.
func Copy(ctx context.Context, out *cli.Output, s Source, to CopyTarget, opts CopyOptions) (err error) {
	c := &copier{to: to, out: out, opts: opts, report: &CopyReport{DryRun: opts.DryRun}, batches: make(chan []copyItem)}
	at, err := c.check()
	if err != nil {
		return err
	}
	return s.Reading(ctx, "copy", func(text string) { out.Sayf("%s", text) }, func(ctx context.Context) error {
		return c.copy(ctx, s, at)
	})
}

// copy copies the records, and prints the report.
func (c *copier) copy(ctx context.Context, s Source, at At) error {
	plan, err := c.prepare(ctx, s, at)
	if err != nil {
		return err
	}
	begin := time.Now()
	stop := cli.ShowProgress(c.out, c.opts.Quiet, "looked at", "records", func() (records, bytes int64) {
		return c.seen.Load(), c.writtenBytes.Load()
	})
	err = c.run(ctx, plan)
	stop()
	r := c.report
	r.Written, r.WrittenBytes, r.Replaced = c.written.Load(), c.writtenBytes.Load(), c.replaced.Load()
	r.AlreadyThere, r.Different, r.Seconds = c.there.Load(), c.different.Load(), time.Since(begin).Seconds()
	return errors.Join(c.out.Print(r, "%s", copyWords(r)), c.outcome(err))
}

// outcome returns the error with which the command ends, or nil if the copy succeeded.
func (c *copier) outcome(err error) error {
	switch r := c.report; {
	case err != nil && r.Written+r.AlreadyThere == 0:
		return fmt.Errorf("copy: %w", err)
	case err != nil:
		return fmt.Errorf("copy: %w: run the command again: what was written is not written twice", err)
	case r.Different > 0:
		return fmt.Errorf("copy: %s other content now: --overwrite replaces it", cli.Count(r.Different, "record has",
			"records have"))
	case r.AbsentThen > 0 && c.seen.Load() == 0:
		return cli.NotFoundf("copy: none of the ids had a record at this point")
	}
	return nil
}

func copyWords(r *CopyReport) string {
	verb := "wrote"
	if r.DryRun {
		verb = "would write"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s, %s", verb, cli.Count(r.Written, "record", "records"), cli.FormatBytes(r.WrittenBytes))
	for _, row := range []struct {
		n    int64
		what string
	}{
		{r.Replaced, "of them in place of other content"},
		{r.AlreadyThere, "already there"},
		{r.Different, "with other content now, not touched"},
		{r.AbsentThen, "did not exist then"},
	} {
		if row.n > 0 {
			fmt.Fprintf(&b, "\n  %s %s", cli.FormatCount(row.n), row.what)
		}
	}
	b.WriteByte('\n')
	return b.String()
}

// check checks the options, and returns the point in time to read.
func (c *copier) check() (At, error) {
	o := &c.opts
	switch {
	case o.At == "":
		return At{}, cli.Usagef("say with --at as of when: a time such as 2026-11-01T12:00:00Z")
	case o.IDs == nil && o.Group == "":
		return At{}, cli.Usagef("say with --ids which records, or with --group which group")
	case o.Rate < 0 || o.Rate > 0 && o.Rate < copyRateMin:
		return At{}, cli.Usagef("--rate %d: must be at least 1 KiB in a second, or 0 for no limit", o.Rate)
	}
	if o.Rate > 0 {
		c.limit = rate.NewLimiter(rate.Limit(o.Rate), copyRateBurst)
	}
	o.Patience = cmp.Or(o.Patience, copyPatience)
	return ParseAt(o.At)
}

// prepare finds the groups to read. It writes nothing to the store.
func (c *copier) prepare(ctx context.Context, s Source, at At) ([]copyPlan, error) {
	o := &c.opts
	a, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	wanted, err := c.wanted(a)
	if err != nil {
		return nil, err
	}
	if at.Index != 0 && len(wanted) > 1 {
		return nil, cli.Usagef("--at %s: an index belongs to one group, and the ids are of %d: give a time", o.At,
			len(wanted))
	}
	if c.named, err = c.to.Named(ctx); err != nil {
		return nil, fmt.Errorf("copy: asking for the routing: %w", err)
	}
	switch hash := a.Header().Routing == "hash"; {
	case o.As != "" && !c.named:
		return nil, cli.Usagef("--as %s: the store has Hash routing, where the id decides the group", o.As)
	case o.As == "" && c.named && hash:
		return nil, cli.Usagef("the archive has Hash routing and the store has Named routing: say with --as which group")
	}
	return c.plan(ctx, a, at, wanted)
}

// run reads the groups, and sends the records that must be written.
func (c *copier) run(ctx context.Context, plan []copyPlan) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(c.batches)
		for _, p := range plan {
			if err := c.read(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
	for range copySenders {
		g.Go(func() error {
			for batch := range c.batches {
				if err := c.send(ctx, batch); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// read reads one group, and passes its records on in batches to the senders.
func (c *copier) read(ctx context.Context, p copyPlan) error {
	var batch []copyItem
	var bytes, found int64
	pass := func() error {
		if len(batch) == 0 {
			return nil
		}
		select {
		case c.batches <- batch:
			batch, bytes = nil, 0
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for v, err := range p.group.StateOf(ctx, p.index, p.wants) {
		if err != nil {
			return err
		}
		record, err := recordOf(v, p.group)
		if err != nil {
			return err
		}
		record.Key = client.Key{ID: v.Entry.ID}
		if c.named {
			record.Key.Group = cmp.Or(c.opts.As, p.group.Name)
		}
		found++
		batch, bytes = append(batch, copyItem{version: v, record: record}), bytes+v.Size
		if len(batch) == copyBatchPuts || bytes >= copyBatchBytes {
			if err := pass(); err != nil {
				return err
			}
		}
	}
	if p.ids != nil {
		c.report.AbsentThen += int64(len(p.ids)) - found
	}
	return pass()
}
