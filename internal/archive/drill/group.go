package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// founder is the Raft id in the restored files. No replica runs on them.
const founder = 1

// Living is the store whose archive is restored.
type Living interface {
	// Copy returns the files of a group as of its applied index. It returns an error that wraps fs.ErrNotExist if the
	// store does not have the group.
	Copy(ctx context.Context, group uuid.UUID) (archiver.GroupCopy, error)
}

// group restores and compares one group, and adds the outcome to the drill.
func (d *drill) group(ctx context.Context, r *restore.Restore, g *restore.Group) {
	out := object.DrillGroup{Group: g.Source, Name: g.Name, Index: g.Index, Result: object.DrillProven}
	before := d.out.Differing
	var err error
	if g.Err != nil {
		err = archiveError{g.Err}
	} else {
		err = d.prove(ctx, r, g, &out)
	}
	switch {
	case err == nil:
	case errors.Is(err, reader.ErrRefused):
		out.Result, out.Error = object.DrillRefused, words(err)
	case errors.As(err, &archiveError{}) && reader.IsBroken(err):
		d.differs(g, "", words(err))
	default:
		out.Result, out.Error = object.DrillFailed, words(err)
	}
	if d.out.Differing > before {
		out.Result = object.DrillDiffers
	}
	d.out.Groups = append(d.out.Groups, out)
}

// archiveError is an error of reading the archive. Errors of the scratch folder and of the store say nothing about the
// archive.
type archiveError struct{ error }

func (e archiveError) Unwrap() error { return e.error }

// archiveReader marks the errors of a reader as those of the archive.
type archiveReader struct{ io.Reader }

// Read implements io.Reader.
func (r archiveReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = archiveError{err}
	}
	return n, err
}

// prove restores a group into the scratch folder, checks it, and compares it with the store.
func (d *drill) prove(ctx context.Context, r *restore.Restore, g *restore.Group, out *object.DrillGroup) (err error) {
	image, err := r.Image(ctx, g.UUID, founder)
	if err != nil {
		return archiveError{err}
	}
	defer func() { err = errors.Join(err, image.Close(), d.opts.Scratch.clear()) }()
	out.Records, out.Bytes = image.Records(), image.Bytes()
	if err := d.opts.Scratch.room(out.Bytes); err != nil {
		return err
	}
	opts := group.Options{FS: d.opts.Scratch.FS, Dir: d.opts.Scratch.dir(),
		Identity: format.Identity{Store: r.Store(), Group: g.UUID, Name: g.Name}}
	if err := install(ctx, image, opts); err != nil {
		return err
	}
	whole, err := d.walk(ctx, g, opts, image)
	if err != nil || !whole {
		return err
	}
	return d.compare(ctx, g, image, out)
}

// install makes the files of an image in the scratch folder, as a shard would.
func install(ctx context.Context, image *restore.Image, opts group.Options) error {
	if err := opts.FS.MkdirAll(opts.Dir); err != nil {
		return err
	}
	replica := format.ReplicaFile{RaftID: founder, Volume: uuid.New()}
	in, err := transfer.NewInstall(ctx, opts.ForInstall(), replica, image.Manifest())
	if err != nil {
		return err
	}
	for missing := in.Missing(); len(missing) > 0; missing = in.Missing() {
		for _, f := range missing {
			if err := fetch(ctx, image, in, f); err != nil {
				return err
			}
		}
	}
	return in.Finish(ctx)
}

// fetch makes the missing part of one file.
func fetch(ctx context.Context, image *restore.Image, in *transfer.Install, f transfer.File) (err error) {
	src, err := image.Open(ctx, f.Name, f.Have)
	if err != nil {
		return archiveError{err}
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	w, err := in.File(f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if _, err := io.Copy(struct{ io.Writer }{w}, archiveReader{src}); err != nil {
		return err
	}
	return w.Commit()
}

// walk checks every byte of the restored files, and opens them as a shard does. It reports whether they are whole.
func (d *drill) walk(ctx context.Context, g *restore.Group, opts group.Options, image *restore.Image) (bool, error) {
	before := d.out.Differing
	report, err := fsck.VerifyDir(ctx, opts.FS, opts.Dir, nil)
	if err != nil {
		return false, err
	}
	for _, damage := range report.Damages {
		d.differs(g, "", "the restored file "+damage.String())
	}
	if d.out.Differing > before {
		return false, nil
	}
	log, loaded, err := group.Load(ctx, opts, nil)
	if err != nil {
		return false, err
	}
	records, applied := log.Stats().Records, log.AppliedIndex()
	if err := log.Close(false); err != nil {
		return false, err
	}
	index, _ := image.Position()
	switch {
	case loaded.Outcome != group.Loaded:
		d.differs(g, "", fmt.Sprintf("the restored files cannot be opened as those of a shard: %v", loaded.Outcome))
	case records != image.Records() || applied != index:
		d.differs(g, "", fmt.Sprintf("a shard that opens the restored files finds %d records up to index %d, and %d up to "+
			"%d were restored", records, applied, image.Records(), index))
	}
	return d.out.Differing == before, nil
}

// compare compares the restored records with those of the living store.
func (d *drill) compare(ctx context.Context, g *restore.Group, image *restore.Image, out *object.DrillGroup) error {
	s := sides{index: image.AsOf()}
	var err error
	s.living, err = d.living(ctx, g.Source, &s)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		out.NotCompared = "no shard of the store has the group: it was deleted since, or is on no shard that serves"
		return nil
	case errors.Is(err, errBehind):
		out.NotCompared = err.Error()
		return nil
	case err != nil:
		return fmt.Errorf("the store could not be read, so the records were not compared: %w", err)
	}
	manifest, _, err := format.DecodeManifest(image.Manifest())
	if err != nil {
		return err
	}
	restored := files{manifest: manifest, index: format.NumberMax, open: d.opts.Scratch.read}
	if s.restored, err = restored.newest(ctx, d.point); err != nil {
		return err
	}
	s.compare(func(id int64, v verdict, what string) {
		switch v {
		case equal:
			out.Compared++
		case changed:
			out.Changed++
		case differs:
			d.differs(g, strconv.FormatInt(id, 10), what)
		}
	})
	return nil
}

// errBehind means that the replica that was asked knows less than the archive.
var errBehind = errors.New("the replica that was asked is behind the archive")

// living reads the newest version of each record in the living store. It also sets what sides says about the store.
func (d *drill) living(ctx context.Context, id uuid.UUID, s *sides) (_ []row, err error) {
	c, err := d.opts.Living.Copy(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	about := c.Description()
	manifest, _, err := format.DecodeManifest(about.Manifest)
	if err == nil {
		err = format.CheckIdentity(manifest.Identity, format.Identity{Store: d.opts.Store, Group: id})
	}
	if err != nil {
		return nil, err
	}
	if about.Index < s.index {
		return nil, fmt.Errorf("%w: it has applied index %d, and index %d was restored", errBehind, about.Index, s.index)
	}
	s.deletesFloor = max(manifest.TombstoneFloor, manifest.AcceptedThrough)
	store := files{manifest: manifest, index: about.Index,
		open: func(ctx context.Context, name string) (io.ReadCloser, error) { return c.Open(ctx, name, 0) }}
	return store.newest(ctx, d.point)
}
