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

	"sheaf.dev/sheaf/internal/archive/bucket"
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

// copyRunner makes the copies that are wanted. It runs beside the rounds of the archiver, and has only what is below in
// common with them.
type copyRunner struct {
	copies  *copies
	source  Source
	objects *objects
	archive bucket.Bucket // the bucket at the archive's URL, from which a further copy reads what is archived
	limits  limits
	// catalogue creates the first catalogue of a group when all of its segments exist. It is safe for concurrent use.
	catalogue func(ctx context.Context, c *object.Catalogue) (*group, error)
	// uploading holds one element while a segment of a copy is being created, so that the copies of all groups together
	// have two segments in memory: this one, and the one that is being read.
	uploading chan struct{}
	spare     *spare
}

// run makes the requested copies, until ctx ends or an error must end the archiver. It reads the files of one group
// after another. While it reads those of a group, it creates the last objects of the group before.
func (r *copyRunner) run(ctx context.Context) {
	var last *lastObjects // of the group before; nil if they have been created
	defer func() {
		if last != nil {
			_, _ = last.wait() // ctx has ended, or the archiver ends because of another error
		}
	}()
	awaitLast := func() bool {
		of := last
		if last = nil; of == nil {
			return true
		}
		g, err := of.wait()
		return r.endCopy(ctx, of.wanted, g, nil, err)
	}
	for {
		w, ok := r.copies.begin()
		switch {
		case !ok && last != nil:
			if !awaitLast() {
				return
			}
		case !ok:
			select {
			case <-ctx.Done():
				return
			case <-r.copies.signal:
			}
		case w.again != nil:
			if !awaitLast() {
				return
			}
			again, err := r.copyGroupAgain(ctx, w)
			if !r.endCopy(ctx, w, nil, again, err) {
				return
			}
		default:
			c, err := r.readGroup(ctx, w.id)
			if err != nil && !r.endCopy(ctx, w, nil, nil, err) || !awaitLast() {
				return
			}
			if err == nil {
				last = r.createLast(ctx, w, c)
			}
		}
	}
}

// endCopy records the outcome of a copy. It returns false if no further copy must be made.
func (r *copyRunner) endCopy(ctx context.Context, w wanted, g *group, again *copyAgain, err error) bool {
	if context.Cause(ctx) != nil {
		return false
	}
	var source sourceError
	switch {
	case err == nil:
		r.copies.end(w.id, g, again, nil)
	case errors.As(err, &source) || !isFinal(err):
		r.objects.board.failed(ReasonSource, err)
		r.objects.log.Warn("the copy of a group failed", "group", w.id, "again", w.again != nil, "error", err)
		r.copies.end(w.id, nil, again, nil)
	default:
		r.copies.end(w.id, nil, nil, err)
		return false
	}
	return true
}

// readGroup archives a group as of its applied index, apart from the last objects: it creates the blobs, and then the
// segments. The last segment may still be on its way to the bucket when readGroup returns.
func (r *copyRunner) readGroup(ctx context.Context, id uuid.UUID) (*copier, error) {
	files, d, m, err := r.openCopy(ctx, id)
	if err != nil {
		return nil, err
	}
	defer r.closeCopy(files, id)
	c := &copier{runner: r, files: files, identity: m.Identity, index: d.Index, floor: d.Index}
	if d.FloorKnown {
		c.floor = d.Floor
	}
	if err := c.all(ctx, m.Segments); err != nil {
		c.abandon()
		return nil, err
	}
	return c, nil
}

// lastObjects are the last objects of a copy, which are being created.
type lastObjects struct {
	wanted
	over chan struct{} // closed when they exist, or cannot be created
	// The following fields are the outcome. They are set before over is closed.
	group *group
	err   error
}

// wait returns the archived group.
func (l *lastObjects) wait() (*group, error) {
	<-l.over
	return l.group, l.err
}

// createLast begins to create the last objects of a group: the last segment, and then the catalogue, without which
// readers would not find the segments.
func (r *copyRunner) createLast(ctx context.Context, w wanted, c *copier) *lastObjects {
	l := &lastObjects{wanted: w, over: make(chan struct{})}
	go func() {
		defer close(l.over)
		l.group, l.err = r.catalogueOf(ctx, w.id, c)
	}()
	return l
}

// catalogueOf creates the catalogue of a group when all of its segments exist.
func (r *copyRunner) catalogueOf(ctx context.Context, id uuid.UUID, c *copier) (*group, error) {
	if err := c.uploaded(); err != nil {
		return nil, fmt.Errorf("copy group %s: %w", c.identity.Name, err)
	}
	return r.catalogue(ctx, &object.Catalogue{
		Group: id, Name: c.identity.Name, Segments: c.refs, Through: c.index, Floor: c.floor,
	})
}

// firstCatalogue creates the first catalogue of a group that was copied. It sets the fields of c that depend on this
// archive. It is safe for concurrent use.
func (a *Archiver) firstCatalogue(ctx context.Context, c *object.Catalogue) (*group, error) {
	c.Log = a.chain.number.Load()
	number := a.damaged[c.Group] + 1
	if err := a.claimCatalogue(ctx, number, c); err != nil {
		return a.foundInstead(ctx, c.Group, err)
	}
	return &group{id: c.Group, name: c.Name, catalogue: *c, number: number, next: c.Through}, nil
}

// openCopy asks the source for the files of a group, and checks their description.
func (r *copyRunner) openCopy(ctx context.Context, id uuid.UUID) (files GroupCopy, d CopyDescription,
	m *format.Manifest, err error) {
	defer func() {
		if err != nil {
			err = sourceError{fmt.Errorf("copy group %s: %w", id, err)}
		}
	}()
	if files, err = r.source.Copy(ctx, id); err != nil {
		return nil, d, nil, err
	}
	d = files.Description()
	if m, _, err = format.DecodeManifest(d.Manifest); err == nil {
		err = format.CheckIdentity(m.Identity, format.Identity{Store: r.objects.store, Group: id})
	}
	if err == nil && (d.Index > format.NumberMax || d.Floor > format.NumberMax) {
		err = fmt.Errorf("index %d or floor %d is absurd", d.Index, d.Floor)
	}
	if err != nil {
		r.closeCopy(files, id)
	}
	return files, d, m, err
}

func (r *copyRunner) closeCopy(files GroupCopy, id uuid.UUID) {
	if err := files.Close(); err != nil {
		r.objects.log.Warn("the files of a copy were not released", "group", id, "error", err)
	}
}

// copier converts the files of a replica to segment objects, without state records and without void entries.
type copier struct {
	runner   *copyRunner
	files    GroupCopy
	identity format.Identity
	index    uint64 // entries with a greater index are ignored
	floor    uint64
	b        *pieces.Builder // the segment in progress, or nil
	blobs    []blobAt        // blobs to which entries in b refer
	refs     []object.SegmentRef
	commits  []int64 // for each of the refs, the commit time of the last version up to its end
	upload   *upload // of the segment of the last one of the refs; nil if all segments exist
	bytes    int64   // size of all files of the replica

	// The following fields are zero in a first copy.
	after uint64      // the group is archived up to this index, so entries up to it are not copied
	diff  *difference // compares the entries with the archive
}

// all copies the given segment files. The last segment may still be being created when it returns.
func (c *copier) all(ctx context.Context, segments []format.ManifestSegment) error {
	for i := range segments {
		c.bytes += segments[i].Bytes
	}
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
	if c.b != nil && c.b.Bytes() >= c.runner.limits.segmentBytes {
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
	if c.diff == nil { // a further copy may have few entries
		c.b.UseBuffer(c.runner.spare.take(min(c.bytes, c.runner.limits.segmentBytes+frameBytesMax)))
	}
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
		if err := c.uploaded(); err != nil {
			return err
		}
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
	o := c.runner.objects
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

// flush archives the entries in b: first their blobs, then the segment. It returns while the segment is being created,
// so that the next entries are read meanwhile. Only one segment is created at a time, because each is in memory.
func (c *copier) flush(ctx context.Context) error {
	if c.b == nil || c.b.Empty() {
		return nil
	}
	for _, b := range c.blobs {
		if err := c.runner.objects.blob(ctx, c.identity.Group, b.ref, func() (io.ReadCloser, error) {
			return c.files.Open(ctx, format.BlobName(b.ref.ID), 0)
		}); err != nil {
			return err
		}
	}
	if err := c.uploaded(); err != nil {
		return err
	}
	a, b, u := c.runner, c.b, &upload{over: make(chan struct{})}
	select {
	case a.uploading <- struct{}{}: // the last segment of the group before may still be in memory
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	r := b.Range()
	c.refs, c.commits = append(c.refs, object.SegmentRef{First: r.First, Last: r.Last}), append(c.commits, c.commit())
	c.b, c.blobs, c.upload = nil, nil, u
	go func() {
		defer close(u.over)
		defer func() { <-a.uploading }()
		if u.ref, u.err = a.objects.segment(ctx, c.identity.Name, c.floor, object.MadeByCopy, b); u.err != nil {
			return // a client of HTTP may still send the memory after its call has failed
		}
		a.spare.give(b)
	}()
	return nil
}

// upload is the creation of a segment.
type upload struct {
	over chan struct{} // closed when the segment exists, or cannot be created
	// The following fields are the outcome. They are set before over is closed.
	ref object.SegmentRef
	err error
}

// uploaded waits until all segments exist.
func (c *copier) uploaded() error {
	u := c.upload
	if u == nil {
		return nil
	}
	<-u.over
	c.upload, c.refs[len(c.refs)-1] = nil, u.ref
	return u.err
}

// abandon waits until no segment is being created any more. It is called when the copy has failed.
func (c *copier) abandon() {
	if c.upload != nil {
		<-c.upload.over
	}
}
