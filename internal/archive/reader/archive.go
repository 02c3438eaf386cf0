package reader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
)

// Archive is the archive of one store, as it was when it was opened. Objects that are created later are ignored. Its
// methods are not safe for concurrent use.
type Archive struct {
	folder *folder
	header object.Archive
	logs   *logs
	groups map[uuid.UUID]*Group // groups that have been read
}

// Open opens the archive of a store. The bucket is the one at the URL, which several stores may share. The keys are
// those with which the archive's objects may be encrypted. Open returns fs.ErrNotExist if there is no archive of this
// store.
func Open(ctx context.Context, b bucket.Bucket, store uuid.UUID, keys object.Keys) (*Archive, error) {
	f := &folder{bucket: bucket.Under(b, store.String()), store: store, keys: keys}
	a := &Archive{folder: f, groups: map[uuid.UUID]*Group{}}
	info, err := f.stat(ctx, object.ArchiveName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no archive of store %s at this URL: `sheaf-archive list` shows the stores: %w",
			store, err)
	}
	if err != nil {
		return nil, err
	}
	c, err := f.openContent(ctx, object.ArchiveName, object.KindArchive, info.Bytes, &a.header, nil)
	if err != nil {
		return nil, err
	}
	c.close()
	a.logs, err = f.listLogs(ctx)
	return a, err
}

// Stores returns the stores that have an archive in a bucket, sorted by UUID.
func Stores(ctx context.Context, b bucket.Bucket) (stores []uuid.UUID, err error) {
	after := ""
	for {
		name, err := firstName(b.List(ctx, "", after))
		if err != nil || name == "" {
			return stores, err
		}
		folder, _, found := strings.Cut(name, "/")
		if !found {
			after = name // this object belongs to no store
			continue
		}
		store, err := uuid.Parse(folder)
		if err == nil && store.String() == folder {
			switch _, err := b.Stat(ctx, folder+"/"+object.ArchiveName); {
			case err == nil:
				stores = append(stores, store)
			case !errors.Is(err, fs.ErrNotExist):
				return nil, err
			}
		}
		after = folder + "/" + behindAll
	}
}

// behindAll is a suffix that sorts after every object name, because '~' is the greatest character that a name may
// contain.
const behindAll = "~~~~"

// Store returns the UUID of the store.
func (a *Archive) Store() uuid.UUID { return a.folder.store }

// Header returns the header of archive.json.
func (a *Archive) Header() object.Archive { return a.header }

// Logs returns the numbers of the first and the last log object, or 0 and 0 if there are none. Log objects between
// them may be missing. The groups that need a missing one report it (see Group.Missing).
func (a *Archive) Logs() (first, last uint64) { return a.logs.first, a.logs.last }

// Answers reads archive.json again, and returns an error if the bucket does not let it. So a caller that could not read
// another object knows whether that is due to the object, or to the bucket. Answers may be called concurrently with
// all other methods of the archive and its groups.
func (a *Archive) Answers(ctx context.Context) error {
	_, err := a.Object(ctx, object.ArchiveName)
	return err
}

// Groups returns all groups in the archive, sorted by name. A deleted group may have the same name as another group.
func (a *Archive) Groups(ctx context.Context) ([]*Group, error) {
	return a.groupsBut(ctx, func(_ uuid.UUID, err error) error { return err })
}

// Readable is like Groups, but leaves out the groups whose objects are missing or damaged. The map broken says why
// each of them cannot be read.
func (a *Archive) Readable(ctx context.Context) (groups []*Group, broken map[uuid.UUID]error, err error) {
	broken = map[uuid.UUID]error{}
	groups, err = a.groupsBut(ctx, func(id uuid.UUID, err error) error {
		if !IsBroken(err) {
			return err
		}
		broken[id] = err
		return nil
	})
	return groups, broken, err
}

// IsBroken reports whether an error means that an object of the archive is missing or damaged. Any other error was
// caused by the bucket or the caller, and does not mean that the archive is damaged.
func IsBroken(err error) bool {
	return IsMissing(err) || errors.Is(err, object.ErrCorrupt) || errors.Is(err, object.ErrForeign)
}

// groupsBut reads all groups, for Groups and Readable. It calls failed for each group that cannot be read, and leaves
// the group out if failed returns nil.
func (a *Archive) groupsBut(ctx context.Context, failed func(id uuid.UUID, err error) error) ([]*Group, error) {
	ids, err := a.folder.listGroups(ctx)
	if err != nil {
		return nil, err
	}
	groups := make([]*Group, 0, len(ids))
	for _, id := range ids {
		g, err := a.Group(ctx, id)
		if err != nil {
			err = failed(id, err)
		} else {
			groups = append(groups, g)
		}
		if err != nil {
			return nil, err
		}
	}
	// Groups without a catalogue appear only in log objects. It is not necessary to read the log objects that the
	// catalogues cover: a new group gets a catalogue before the first log object with one of its pieces.
	from := uint64(0)
	for _, g := range groups {
		if !g.Gone && (from == 0 || g.catalogue.Log < from) {
			from = g.catalogue.Log + 1
		}
	}
	read, err := a.logs.read(ctx, a.folder, max(from, 1))
	if err != nil {
		return nil, err
	}
	for _, l := range read {
		for i := range l.header.Pieces {
			p := &l.header.Pieces[i]
			if slices.Contains(ids, p.Group) {
				continue
			}
			g, err := a.Group(ctx, p.Group)
			if errors.Is(err, fs.ErrNotExist) {
				g, err = &Group{UUID: p.Group, Name: p.Name, archive: a, Missing: fmt.Sprintf(
					"%s has its entries from index %d on, and the objects before are missing", l.name, p.First)}, nil
			}
			if err != nil {
				return nil, err
			}
			ids, groups = append(ids, p.Group), append(groups, g)
		}
	}
	slices.SortStableFunc(groups, func(a, b *Group) int { return strings.Compare(a.Name, b.Name) })
	return groups, nil
}

// Covered returns the time up to which all of the given groups are archived. It is zero if that time is unknown for
// one of them, or if there are no groups. Deleted groups are ignored, because after their own Covered they are empty
// or do not exist.
func Covered(groups []*Group) (covered time.Time) {
	first := true
	for _, g := range groups {
		if !g.Gone && (first || g.Covered.Before(covered)) {
			covered, first = g.Covered, false
		}
	}
	return covered
}

// Newest returns the latest time up to which one of the given groups is archived. It is zero if that time is unknown
// for all of them, or if there are no groups.
func Newest(groups []*Group) (newest time.Time) {
	for _, g := range groups {
		if g.Covered.After(newest) {
			newest = g.Covered
		}
	}
	return newest
}

// Find returns the group with the given name or UUID. If several groups have had the name, it returns the one that
// still exists.
func (a *Archive) Find(ctx context.Context, group string) (*Group, error) {
	if id, err := uuid.Parse(group); err == nil {
		return a.Group(ctx, id)
	}
	groups, err := a.Groups(ctx)
	if err != nil {
		return nil, err
	}
	var found, gone []*Group
	for _, g := range groups {
		switch {
		case g.Name == group && g.Gone:
			gone = append(gone, g)
		case g.Name == group:
			found = append(found, g)
		}
	}
	if len(found) == 0 {
		found = gone
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("the archive has no group %q: %w", group, fs.ErrNotExist)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%d groups had the name %q: give the UUID of one, such as %s", len(found), group, found[0].UUID)
}

// stat describes an object. Its errors contain the object's name.
func (f *folder) stat(ctx context.Context, name string) (bucket.Info, error) {
	info, err := f.bucket.Stat(ctx, name)
	if mayHelp(ctx, err) {
		info, err = f.bucket.Stat(ctx, name)
	}
	if err != nil {
		return info, fmt.Errorf("object %s: %w", name, err)
	}
	return info, nil
}

// listGroups returns the groups that have a folder. It does not list all objects of each group, because a group has
// many.
func (f *folder) listGroups(ctx context.Context) (ids []uuid.UUID, err error) {
	after := ""
	for {
		name, err := firstName(f.bucket.List(ctx, "g/", after))
		if err != nil || name == "" {
			return ids, err
		}
		folder, _, _ := strings.Cut(strings.TrimPrefix(name, "g/"), "/")
		if id, err := uuid.Parse(folder); err == nil && id.String() == folder {
			ids = append(ids, id)
		}
		after = "g/" + folder + "/" + behindAll
	}
}
