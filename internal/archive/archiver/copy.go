package archiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// adopt adds the groups whose first copy is complete to the archived groups, and further copies to their groups.
func (a *Archiver) adopt() error {
	a.copies.mu.Lock()
	defer a.copies.mu.Unlock()
	for _, g := range a.copies.done {
		a.groups[g.id] = g
	}
	for i := range a.copies.again {
		a.adoptAgain(&a.copies.again[i])
	}
	a.copies.done, a.copies.again = nil, nil
	return a.copies.err
}

// copyGroups makes the requested copies one after another, until ctx ends or an error must end the archiver.
func (a *Archiver) copyGroups(ctx context.Context) {
	for {
		w, ok := a.copies.first()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-a.copies.signal:
			}
			continue
		}
		var g *group
		var again *copyAgain
		var err error
		if w.again == nil {
			g, err = a.copyGroup(ctx, w.id)
		} else {
			again, err = a.copyGroupAgain(ctx, w)
		}
		if context.Cause(ctx) != nil {
			return
		}
		var source sourceError
		switch {
		case err == nil:
			a.copies.end(g, again, nil)
		case errors.As(err, &source) || !isFinal(err):
			a.board.failed(ReasonSource, err)
			a.opts.Log.Warn("the copy of a group failed", "group", w.id, "again", w.again != nil, "error", err)
			a.copies.end(nil, again, nil)
		default:
			a.copies.end(nil, nil, err)
			return
		}
	}
}

// copyGroup archives a group as of its applied index. It creates the blobs, then the segments, and finally the
// catalogue, without which readers would not find the segments.
func (a *Archiver) copyGroup(ctx context.Context, id uuid.UUID) (g *group, err error) {
	files, d, m, err := a.openCopy(ctx, id)
	if err != nil {
		return nil, err
	}
	defer a.closeCopy(files, id)
	c := copier{archiver: a, files: files, identity: m.Identity, index: d.Index, floor: d.Index}
	if d.FloorKnown {
		c.floor = d.Floor
	}
	if err := c.all(ctx, m.Segments); err != nil {
		return nil, err
	}
	catalogue := object.Catalogue{
		Group: id, Name: m.Identity.Name, Segments: c.refs, Through: d.Index, Floor: c.floor, Log: a.chain.number.Load(),
	}
	number := a.damaged[id] + 1
	if err := a.claimCatalogue(ctx, number, &catalogue); err != nil {
		return a.foundInstead(ctx, id, err)
	}
	return &group{id: id, name: m.Identity.Name, catalogue: catalogue, number: number, next: d.Index}, nil
}

// openCopy asks the source for the files of a group, and checks their description.
func (a *Archiver) openCopy(ctx context.Context, id uuid.UUID) (files GroupCopy, d CopyDescription, m *format.Manifest,
	err error) {
	defer func() {
		if err != nil {
			err = sourceError{fmt.Errorf("copy group %s: %w", id, err)}
		}
	}()
	if files, err = a.opts.Source.Copy(ctx, id); err != nil {
		return nil, d, nil, err
	}
	d = files.Description()
	if m, _, err = format.DecodeManifest(d.Manifest); err == nil {
		err = format.CheckIdentity(m.Identity, format.Identity{Store: a.opts.Store, Group: id})
	}
	if err == nil && (d.Index > format.NumberMax || d.Floor > format.NumberMax) {
		err = fmt.Errorf("index %d or floor %d is absurd", d.Index, d.Floor)
	}
	if err != nil {
		a.closeCopy(files, id)
	}
	return files, d, m, err
}

func (a *Archiver) closeCopy(files GroupCopy, id uuid.UUID) {
	if err := files.Close(); err != nil {
		a.opts.Log.Warn("the files of a copy were not released", "group", id, "error", err)
	}
}

// copier converts the files of a replica to segment objects, without state records and without void entries.
type copier struct {
	archiver *Archiver
	files    GroupCopy
	identity format.Identity
	index    uint64 // entries with a greater index are ignored
	floor    uint64
	b        *pieces.Builder // the segment in progress, or nil
	blobs    []blobAt        // blobs to which entries in b refer
	refs     []object.SegmentRef
	commits  []int64 // for each of the refs, the commit time of the last version up to its end

	// The following fields are zero in a first copy.
	after uint64      // the group is archived up to this index, so entries up to it are not copied
	diff  *difference // compares the entries with the archive
}

// all copies the given segment files.
func (c *copier) all(ctx context.Context, segments []format.ManifestSegment) error {
	for i := range segments {
		if err := c.file(ctx, &segments[i]); err != nil {
			return fmt.Errorf("copy group %s: %w", c.identity.Name, err)
		}
	}
	if err := c.flush(ctx); err != nil {
		return fmt.Errorf("copy group %s: %w", c.identity.Name, err)
	}
	return nil
}

// commit returns the commit time of the last version that was added, or 0 if there is none.
func (c *copier) commit() (at int64) {
	if c.b != nil {
		at = c.b.Commit()
	}
	if n := len(c.commits); at == 0 && n > 0 {
		at = c.commits[n-1]
	}
	return at
}

// blobAt is an entry's reference to a blob.
type blobAt struct {
	index uint64
	ref   format.BlobRef
}

// file adds the entries of one segment file of the replica.
func (c *copier) file(ctx context.Context, s *format.ManifestSegment) error {
	if err := c.truncate(ctx, s.FirstIndex); err != nil {
		return err
	}
	return c.read(ctx, s, func(e *format.Entry, frame []byte) error { return c.add(ctx, e, frame) })
}

// read calls visit for each entry of one segment file of the replica, up to the replica's index.
func (c *copier) read(ctx context.Context, s *format.ManifestSegment, visit func(e *format.Entry, frame []byte) error) (
	err error) {
	src, err := c.files.Open(ctx, format.SegmentName(s.Number), 0)
	if err != nil {
		return sourceError{err}
	}
	defer func() {
		if closed := src.Close(); err == nil && closed != nil {
			err = sourceError{closed}
		}
	}()
	r := pieces.NewFileReader(src, c.identity, *s)
	for r.Next() {
		e := r.Entry()
		if e.Kind == format.KindState || e.Index > c.index {
			continue
		}
		if err := visit(e, r.Frame()); err != nil {
			return err
		}
	}
	if r.Err() != nil {
		return sourceError{r.Err()}
	}
	return nil
}

// add adds one entry. It first removes the entries with the same or a greater index, which the new entry makes void.
func (c *copier) add(ctx context.Context, e *format.Entry, frame []byte) error {
	if err := c.truncate(ctx, e.Index); err != nil {
		return err
	}
	if c.diff != nil {
		c.diff.add(e, c.commit())
	}
	if e.Index <= c.after {
		return nil
	}
	if c.b != nil && c.b.Bytes() >= c.archiver.limits.segmentBytes {
		if err := c.flush(ctx); err != nil {
			return err
		}
	}
	ref, err := e.BlobRef()
	if err != nil {
		return sourceError{err}
	}
	if c.b == nil {
		c.begin()
	}
	err = c.b.Copy(e, frame)
	if errors.Is(err, pieces.ErrSpan) {
		if err := c.flush(ctx); err != nil {
			return err
		}
		c.begin()
		err = c.b.Copy(e, frame)
	}
	if err != nil {
		return sourceError{err}
	}
	if ref != nil {
		c.blobs = append(c.blobs, blobAt{index: e.Index, ref: *ref})
	}
	return nil
}

func (c *copier) begin() {
	c.b = pieces.NewBuilder(c.identity.Store, c.identity.Group, time.Now())
}

// truncate removes all entries whose index is at least the given one. If some of them are already in a segment
// object, that object becomes garbage, and its remaining entries are read back.
func (c *copier) truncate(ctx context.Context, from uint64) error {
	if c.diff != nil {
		c.diff.truncate(from)
	}
	if c.b != nil {
		c.b.Truncate(from)
		c.blobs = slices.DeleteFunc(c.blobs, func(b blobAt) bool { return b.index >= from })
		if !c.b.Empty() {
			return nil
		}
		c.b = nil
	}
	for n := len(c.refs); n > 0 && c.refs[n-1].Last >= from; n = len(c.refs) {
		last := c.refs[n-1]
		c.refs, c.commits = c.refs[:n-1], c.commits[:n-1]
		if last.First >= from {
			continue
		}
		return c.readBack(ctx, last, from)
	}
	return nil
}

// readBack starts a new segment with those entries of a segment object that are below an index. Their blobs have
// already been archived.
func (c *copier) readBack(ctx context.Context, ref object.SegmentRef, below uint64) error {
	id, err := object.ParseSegmentID(ref.ID)
	if err != nil {
		return err
	}
	o := c.archiver.objects
	name := object.SegmentName(c.identity.Group, ref.First, ref.Last, id)
	return o.again(ctx, ReasonRead, "read "+name, func() (err error) {
		c.begin()
		src, err := o.bucket.Open(ctx, name, 0, -1)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, src.Close()) }()
		d, err := object.NewDecoder(src, o.store, object.KindSegment, o.keys)
		if err != nil {
			return err
		}
		var h object.Segment
		if err := d.Header(&h); err != nil {
			return err
		}
		e := d.Envelope()
		r := pieces.NewReader(d, pieces.Want{
			Store: o.store, Range: h.Range, Bytes: e.ContentBytes - e.HeaderBytes, ID: &id,
		})
		for r.Next() {
			if r.Entry().Index >= below {
				continue
			}
			if err := c.b.Copy(r.Entry(), bytes.Clone(r.Frame())); err != nil {
				return err
			}
		}
		return r.Err()
	})
}

// flush archives the entries in b: first their blobs, then the segment.
func (c *copier) flush(ctx context.Context) error {
	if c.b == nil || c.b.Empty() {
		return nil
	}
	for _, b := range c.blobs {
		if err := c.archiver.objects.blob(ctx, c.identity.Group, b.ref, func() (io.ReadCloser, error) {
			return c.files.Open(ctx, format.BlobName(b.ref.ID), 0)
		}); err != nil {
			return err
		}
	}
	ref, err := c.archiver.writeSegment(ctx, c.identity.Name, c.floor, object.MadeByCopy, c.b)
	if err != nil {
		return err
	}
	c.refs, c.commits = append(c.refs, ref), append(c.commits, c.commit())
	c.b, c.blobs = nil, nil
	return nil
}
