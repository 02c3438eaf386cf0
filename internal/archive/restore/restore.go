package restore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Restore holds the state of a store at one time, for the groups of a new store. Safe for concurrent use.
type Restore struct {
	store    uuid.UUID // UUID of the new store
	archived uuid.UUID // UUID of the archived store
	at       time.Time
	header   object.Archive
	limits   limits
	answers  func(ctx context.Context) error // Archive.Answers of the archive
	groups   []Group
	byID     map[uuid.UUID]int // index in groups, by UUID
	images   *images
	room     int64 // bytes that all plans together may reserve
	patience time.Duration
}

// Group is one group of the archive, as of the time of a restore.
type Group struct {
	Name   string    // empty if the name is unknown because the group cannot be read
	UUID   uuid.UUID // UUID of the group in the new store
	Source uuid.UUID // UUID of the group in the archive; zero if the archive does not have the group
	Index  uint64    // index that corresponds to the time; 0 if Err is set
	// Err is the reason why the group cannot be restored, or nil if it can be. It is a *reader.RefusedError if the
	// group's objects can be read, but do not show the state of the group at that time.
	Err error

	from *reader.Group
}

// These are errors of Restore.Image and Image.Open.
var (
	// ErrNoFile means that the group has no file with that name, or that the offset is after the end of the file.
	ErrNoFile = errors.New("the restored group has no such file")
	// ErrBusy means that other images are open or being created, and that there is no memory for another one, or that
	// one of them is of the same group.
	ErrBusy = errors.New("other groups are being restored")
	// ErrUnknown means that no group of the restore has that UUID.
	ErrUnknown = errors.New("the restore has no such group")
)

// New determines the state of each group of an archive at a time. The argument store is the UUID of the new store.
// New leaves out a deleted group if the archive covers the group only up to an earlier time, because after that the
// group was empty or did not exist. The caller must not use the archive afterwards.
func New(ctx context.Context, a *reader.Archive, store uuid.UUID, at time.Time) (*Restore, error) {
	return build(ctx, a, store, when{time: at})
}

// NewAtPoint is like New, but for a named point of the archive. Each group is restored as of the index that the point
// has for it, because pruning may have dropped the entries around the point's time. Groups that the point does not list
// did not exist then, and are left out.
func NewAtPoint(ctx context.Context, a *reader.Archive, store uuid.UUID, point *object.Point) (*Restore, error) {
	return build(ctx, a, store, whenOf(point))
}

// NewUpTo is like New, but it takes a group as it was last archived if the archive covers the group only up to an
// earlier time. A restore of everything that was archived needs this, because the archive rarely says of all groups up
// to when it covers them: an archiver notes that about an idle group only from time to time.
func NewUpTo(ctx context.Context, a *reader.Archive, store uuid.UUID, at time.Time) (*Restore, error) {
	return build(ctx, a, store, when{time: at, orEnd: true})
}

// NewOfGroups is like New, but takes only the given groups of the archive. If point is not nil, it is like NewAtPoint,
// and the time does not matter. A drill restores a few groups of a store at a time.
func NewOfGroups(ctx context.Context, a *reader.Archive, store uuid.UUID, at time.Time, point *object.Point,
	groups []uuid.UUID) (*Restore, error) {
	w := when{time: at}
	if point != nil {
		w = whenOf(point)
	}
	w.only = make(map[uuid.UUID]bool, len(groups))
	for _, id := range groups {
		w.only[id] = true
	}
	return build(ctx, a, store, w)
}

// when is the time as of which a store is restored.
type when struct {
	time  time.Time
	orEnd bool                            // whether a group whose archive ends earlier is taken as it was last archived
	point map[uuid.UUID]object.PointGroup // the groups of a named point, by UUID; nil if the restore is as of a time
	only  map[uuid.UUID]bool              // the groups to restore, by their UUIDs in the archive; nil means all
}

// whenOf returns the time of a named point.
func whenOf(point *object.Point) when {
	w := when{time: time.Unix(0, point.Time), point: map[uuid.UUID]object.PointGroup{}}
	for _, g := range point.Groups {
		w.point[g.Group] = g
	}
	return w
}

// wants reports whether a group of the archive is to be restored.
func (w when) wants(group uuid.UUID) bool { return w.only == nil || w.only[group] }

// existed reports whether a group existed at the time.
func (w when) existed(g *reader.Group) bool {
	if w.point != nil {
		_, ok := w.point[g.UUID]
		return ok
	}
	return !g.Gone || !w.time.After(g.Covered)
}

// index returns the index of a group that corresponds to the time.
func (w when) index(ctx context.Context, g *reader.Group) (uint64, error) {
	switch {
	case w.point == nil && w.orEnd && w.time.After(g.Covered) && g.Missing == "":
		return g.Through, g.Check(ctx, g.Through)
	case w.point == nil:
		return g.At(ctx, w.time)
	}
	index := w.point[g.UUID].Index
	return index, g.Check(ctx, index)
}

func build(ctx context.Context, a *reader.Archive, store uuid.UUID, w when) (*Restore, error) {
	if store == a.Store() || store == uuid.Nil {
		return nil, fmt.Errorf("the new store needs a UUID of its own, and not %s", store)
	}
	r := &Restore{store: store, archived: a.Store(), at: w.time, header: a.Header(), limits: defaultLimits,
		answers: a.Answers, byID: map[uuid.UUID]int{}, images: newImages(roomBytes), room: roomBytes, patience: patience}
	all, broken, err := a.Readable(ctx)
	if err != nil {
		return nil, err
	}
	missing := maps.Clone(w.point) // groups of the point that have not been found yet
	for id, err := range broken {
		of, listed := w.point[id]
		if w.point != nil && !listed || !w.wants(id) {
			continue
		}
		delete(missing, id)
		r.groups = append(r.groups, Group{Name: of.Name, UUID: GroupUUID(store, id), Source: id, Err: err})
	}
	for _, g := range all {
		if !w.existed(g) || !w.wants(g.UUID) {
			continue
		}
		delete(missing, g.UUID)
		found := Group{Name: g.Name, UUID: GroupUUID(store, g.UUID), Source: g.UUID, from: g}
		if found.Index, found.Err = w.index(ctx, g); found.Err != nil {
			found.Index = 0
		}
		if err := found.Err; err != nil && !errors.Is(err, reader.ErrRefused) && !reader.IsBroken(err) {
			return nil, err
		}
		r.groups = append(r.groups, found)
	}
	for id, g := range missing {
		if !w.wants(id) {
			continue
		}
		r.groups = append(r.groups, Group{Name: g.Name, UUID: GroupUUID(store, id), Source: id,
			Err: fmt.Errorf("group %s: the archive does not have it any more: %w", g.Name, fs.ErrNotExist)})
	}
	r.oneOfEachName()
	if w.only == nil {
		r.addMissing()
	}
	r.number()
	return r, nil
}

// number notes the index of each group.
func (r *Restore) number() {
	clear(r.byID)
	for i, g := range r.groups {
		r.byID[g.UUID] = i
	}
}

// ErrNotOnly means that Only cannot restrict the restore as wanted.
var ErrNotOnly = errors.New("these groups alone cannot be restored")

// Only restricts the restore to the groups with the given names. It returns an ErrNotOnly if the store did not have one
// of them at the time, or if it uses hash routing, where each group has a part of the ids. Call it before any other
// goroutine uses the restore.
func (r *Restore) Only(names []string) error {
	if r.header.Routing == "hash" {
		return fmt.Errorf("%w: the archived store has routing Hash, so each group has a part of all ids: restore the "+
			"whole store", ErrNotOnly)
	}
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	only := slices.DeleteFunc(slices.Clone(r.groups), func(g Group) bool { return g.Name == "" || !wanted[g.Name] })
	for _, g := range only {
		delete(wanted, g.Name)
	}
	if len(wanted) > 0 {
		return fmt.Errorf("%w: as of %s, the archive has no group %s", ErrNotOnly, r.at.UTC().Format(time.RFC3339Nano),
			slices.Min(slices.Collect(maps.Keys(wanted))))
	}
	r.groups = only
	r.number()
	return nil
}

// GroupUUID returns the UUID that a group of an archive gets in a new store. The result is the same in every process,
// so the source of a restore need not remember which group is which.
func GroupUUID(store, group uuid.UUID) uuid.UUID { return uuid.NewSHA1(store, group[:]) }

// oneOfEachName keeps only one group of each name, because only one of them existed at the time. If a group can be
// restored, it existed at the time, and the other groups with its name did not.
func (r *Restore) oneOfEachName() {
	slices.SortStableFunc(r.groups, func(a, b Group) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(rank(a), rank(b)), bytes.Compare(a.Source[:], b.Source[:]))
	})
	r.groups = slices.CompactFunc(r.groups, func(a, b Group) bool { return a.Name == b.Name && a.Name != "" })
}

// rank orders the groups with the same name. The group with the lowest rank is kept.
func rank(g Group) int {
	switch {
	case g.Err == nil:
		return 0
	case g.from == nil || !g.from.Gone:
		return 1
	}
	return 2
}

// addMissing adds the groups that the archive lacks, if the store uses hash routing. A store with hash routing always
// has all of its groups.
func (r *Restore) addMissing() {
	if r.header.Routing != "hash" {
		return
	}
	there := make(map[string]bool, len(r.groups))
	for _, g := range r.groups {
		there[g.Name] = true
	}
	for n := range r.header.Groups {
		name := strconv.Itoa(n)
		if !there[name] {
			r.groups = append(r.groups, Group{
				Name: name, UUID: uuid.NewSHA1(r.store, []byte(name)),
				Err: fmt.Errorf("group %s: the archive does not have it: %w", name, fs.ErrNotExist),
			})
		}
	}
}

// Groups returns the groups that the store had at the time, in no particular order.
func (r *Restore) Groups() []Group { return slices.Clone(r.groups) }

// Store returns the UUID of the new store.
func (r *Restore) Store() uuid.UUID { return r.store }

// ArchivedStore returns the UUID of the store whose archive is restored.
func (r *Restore) ArchivedStore() uuid.UUID { return r.archived }

// At returns the point in time as of which the groups are restored.
func (r *Restore) At() time.Time { return r.at }

// Answers returns an error if the bucket does not let the archive be read at all. It reads one small object.
func (r *Restore) Answers(ctx context.Context) error { return r.answers(ctx) }

// Archive returns the content of archive.json.
func (r *Restore) Archive() object.Archive { return r.header }

// Image creates the image of a group, given the group's UUID in the new store. The founder is the Raft id of the
// replica that installs the image. It must not be zero and must never have been used before.
//
// Images of several groups may be open at a time, as long as their memory suffices: what is read of a group is kept
// until the image is closed, unless that is more than 60 MB. A larger group is read once to create the image, and once
// more while the image's files are read. Only one of these may be open at a time. All images need up to 24 bytes for
// each record, and about 200 bytes for each put above 1 MiB in the history. Image waits for memory, or for the end of
// another image of the same group. If it returns ErrBusy, the caller can try again later. If the same group is
// requested soon again, the plan of the first image is used again.
func (r *Restore) Image(ctx context.Context, group uuid.UUID, founder uint64) (_ *Image, err error) {
	at, ok := r.byID[group]
	if !ok {
		return nil, fmt.Errorf("group %s: %w", group, ErrUnknown)
	}
	g := r.groups[at]
	if g.Err != nil {
		return nil, g.Err
	}
	if founder == 0 {
		return nil, fmt.Errorf("%s: the Raft id of the replica that installs it is zero", g.from)
	}
	need := needOf(g.from.Bytes(g.Index), r.room)
	p, err := r.images.begin(ctx, group, need, r.patience)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.images.end(group, need, p)
		}
	}()
	if p == nil {
		identity, l := format.Identity{Store: r.store, Group: group, Name: g.Name}, r.limits
		l.keptBytes = need.keep()
		if p, err = makePlan(ctx, g.from, identity, g.Index, l); err != nil {
			p = nil
			return nil, err
		}
		p.need = need
	}
	return newImage(p, founder, func() { r.images.end(group, need, p) })
}
