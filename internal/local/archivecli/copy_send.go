package archivecli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// presence says how the record in the store compares with the record in the archive.
type presence int

const (
	presentNot   presence = iota // no record
	presentSame                  // the store has the record with the same content
	presentOther                 // the store has the record with other content
)

// send writes those records of a batch that the store does not already have with the same content. If somebody else
// creates or deletes a record at the same time, send looks up that record again.
func (c *copier) send(ctx context.Context, batch []copyItem) error {
	for range copyTries {
		again, err := c.sendOnce(ctx, batch)
		if err != nil || len(again) == 0 {
			return err
		}
		batch = again
	}
	return fmt.Errorf("record %s is created and deleted by others again and again", batch[0].record.Key)
}

// sendOnce makes one attempt to write a batch. It returns the records that must be looked up again.
func (c *copier) sendOnce(ctx context.Context, batch []copyItem) (again []copyItem, err error) {
	present, err := c.lookUp(ctx, batch)
	if err != nil {
		return nil, err
	}
	var small []copyItem
	var replaced []bool
	for i := range batch {
		one := batch[i]
		switch {
		case present[i] == presentSame:
			c.there.Add(1)
			c.seen.Add(1)
		case present[i] == presentOther && !c.opts.Overwrite:
			c.noteDifferent(&one)
		case c.opts.DryRun:
			c.noteWritten(&one, present[i] == presentOther)
		case one.version.Entry.Data == nil:
			if err := c.upload(ctx, &one, present[i] == presentOther, &again); err != nil {
				return nil, err
			}
		default:
			small, replaced = append(small, one), append(replaced, present[i] == presentOther)
		}
	}
	if len(small) == 0 {
		return again, nil
	}
	more, err := c.put(ctx, small, replaced)
	return append(again, more...), err
}

// noteDifferent counts a record that is not replaced although its content differs. It prints the first few of these
// records.
func (c *copier) noteDifferent(one *copyItem) {
	c.seen.Add(1)
	if c.different.Add(1) <= copyDifferences {
		c.out.Sayf("record %s has other content now", one.record.Key)
	}
}

func (c *copier) noteWritten(one *copyItem, replaced bool) {
	c.seen.Add(1)
	c.written.Add(1)
	c.writtenBytes.Add(one.version.Size)
	if replaced {
		c.replaced.Add(1)
	}
}

// lookUp finds out, for each record of a batch, whether the store has it.
func (c *copier) lookUp(ctx context.Context, batch []copyItem) ([]presence, error) {
	present := make([]presence, len(batch))
	var compare []int // indexes of records with the same metadata, but a different version
	for i, outcome := range c.get(ctx, batch, true) {
		there, was := &outcome.Record, &batch[i].record
		switch {
		case errors.Is(outcome.Err, client.ErrNotFound):
		case outcome.Err != nil:
			return nil, fmt.Errorf("looking up what is there: %w", outcome.Err)
		case there.Version == was.Version && there.CommitTime.Equal(was.CommitTime):
			present[i] = presentSame // the store still has the version that was archived
		case there.Size == was.Size && there.Timestamp.Equal(was.Timestamp) &&
			maps.EqualFunc(there.Attributes, was.Attributes, bytes.Equal):
			compare = append(compare, i)
		default:
			present[i] = presentOther
		}
	}
	return present, c.compare(ctx, batch, compare, present)
}

// get reads records from the store.
func (c *copier) get(ctx context.Context, batch []copyItem, metadataOnly bool) []client.GetOutcome {
	items := make([]client.GetItem, len(batch))
	for i := range batch {
		items[i] = client.GetItem{Key: batch[i].record.Key, Options: client.GetOptions{MetadataOnly: metadataOnly}}
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.Patience)
	defer cancel()
	return c.to.BatchGet(ctx, items)
}

// compare compares the data of records whose metadata is the same as in the archive. Such records may have been written
// by an earlier copy.
func (c *copier) compare(ctx context.Context, batch []copyItem, at []int, present []presence) error {
	var small []copyItem
	var places []int
	for _, i := range at {
		if batch[i].version.Entry.Data != nil {
			small, places = append(small, batch[i]), append(places, i)
			continue
		}
		var err error
		if present[i], err = c.compareLarge(ctx, &batch[i]); err != nil {
			return err
		}
	}
	if len(small) == 0 {
		return nil
	}
	for n, outcome := range c.get(ctx, small, false) {
		switch was := small[n].version.Entry.Data; {
		case errors.Is(outcome.Err, client.ErrNotFound):
		case outcome.Err != nil:
			return fmt.Errorf("comparing record %s: %w", small[n].record.Key, outcome.Err)
		case bytes.Equal(outcome.Record.Data, was):
			present[places[n]] = presentSame
		default:
			present[places[n]] = presentOther
		}
	}
	return nil
}

// compareLarge compares the data of a record in the store with those of a blob in the archive.
func (c *copier) compareLarge(ctx context.Context, one *copyItem) (presence, error) {
	was, err := one.version.Open(ctx)
	if err != nil {
		return 0, err
	}
	defer was.Close() //nolint:errcheck // only read from
	same := &sameAs{want: was}
	switch _, err := c.to.Fetch(ctx, one.record.Key, "", same); {
	case errors.Is(err, errDiffers):
		return presentOther, nil
	case errors.Is(err, client.ErrNotFound):
		return presentNot, nil
	case err != nil:
		return 0, fmt.Errorf("comparing record %s: %w", one.record.Key, err)
	}
	if n, err := was.Read(make([]byte, 1)); n > 0 {
		return presentOther, nil
	} else if !errors.Is(err, io.EOF) {
		return 0, err
	}
	return presentSame, nil
}

var errDiffers = errors.New("the data differ")

// sameAs is a writer that compares the written bytes with those of want, and fails at the first difference.
type sameAs struct {
	want   io.Reader
	buffer []byte
}

// Write implements io.Writer.
func (s *sameAs) Write(p []byte) (int, error) {
	if len(s.buffer) < len(p) {
		s.buffer = make([]byte, len(p))
	}
	n, err := io.ReadFull(s.want, s.buffer[:len(p)])
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), err == nil && !bytes.Equal(s.buffer[:n], p):
		return 0, errDiffers
	case err != nil:
		return 0, err
	}
	return len(p), nil
}

// options returns the options for the put of a record. Without Overwrite, a put never replaces a record that was
// created after the lookup.
func (c *copier) options(one *copyItem) client.PutOptions {
	return client.PutOptions{
		IfAbsent: !c.opts.Overwrite, Timestamp: one.record.Timestamp, Attributes: one.record.Attributes,
		RequestID: client.NewRequestID(),
	}
}

// put writes small records. It returns the records that must be looked up again.
func (c *copier) put(ctx context.Context, batch []copyItem, replaced []bool) (again []copyItem, err error) {
	items := make([]client.PutItem, len(batch))
	for i := range batch {
		items[i] = client.PutItem{Key: batch[i].record.Key, Data: batch[i].version.Entry.Data, Options: c.options(&batch[i])}
		if err := c.pay(ctx, batch[i].version.Size); err != nil {
			return nil, err
		}
	}
	try, cancel := context.WithTimeout(ctx, c.opts.Patience)
	defer cancel()
	for i, outcome := range c.to.BatchPut(try, items) {
		switch {
		case errors.Is(outcome.Err, client.ErrExists):
			again = append(again, batch[i])
		case outcome.Err != nil:
			err = cmp.Or(err, outcome.Err) // the other records of the batch must still be counted
		default:
			c.noteWritten(&batch[i], replaced[i])
		}
	}
	return again, err
}

// pay waits until the rate limit permits n more bytes.
func (c *copier) pay(ctx context.Context, n int64) error {
	for ; c.limit != nil && n > 0; n -= copyRateBurst {
		if err := c.limit.WaitN(ctx, int(min(n, copyRateBurst))); err != nil {
			return err
		}
	}
	return nil
}

// upload writes a large record. If somebody else has created the record in the meantime, upload appends the record to
// the list in the argument again.
func (c *copier) upload(ctx context.Context, one *copyItem, replaced bool, again *[]copyItem) error {
	options := c.options(one)
	from := &blobSource{c: c, ctx: ctx, version: &one.version}
	_, err := c.to.Upload(ctx, one.record.Key, from, &options)
	switch err = errors.Join(err, from.close()); {
	case errors.Is(err, client.ErrExists):
		*again = append(*again, *one)
		return nil
	case err != nil:
		return err
	}
	c.noteWritten(one, replaced)
	return nil
}

// blobSource reads the data of a large version. If an upload is repeated, it reads the data again from the beginning.
type blobSource struct {
	c       *copier
	ctx     context.Context //nolint:containedctx // kept in a field, because Read takes no context
	version *reader.Version
	at      int64
	src     io.ReadCloser // positioned at the offset in the field at; nil if it is not open
}

// Seek implements io.Seeker. Uploads seek only to the beginning and to the end.
func (b *blobSource) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += b.at
	case io.SeekEnd:
		offset += b.version.Size
	}
	if offset == b.at {
		return offset, nil
	}
	err := b.close()
	b.at = offset
	return offset, err
}

// Read implements io.Reader.
func (b *blobSource) Read(p []byte) (int, error) {
	if b.src == nil {
		if b.at == b.version.Size && b.at > 0 {
			return 0, io.EOF
		}
		src, err := b.version.Open(b.ctx)
		if err != nil {
			return 0, err
		}
		b.src = src
	}
	n, err := b.src.Read(p)
	b.at += int64(n)
	if paid := b.c.pay(b.ctx, int64(n)); paid != nil {
		return n, paid
	}
	return n, err
}

func (b *blobSource) close() error {
	if b.src == nil {
		return nil
	}
	err := b.src.Close()
	b.src = nil
	return err
}
