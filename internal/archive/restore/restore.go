package restore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Restore is the state of a store at one time, as the groups of a new store. Safe for concurrent use.
type Restore struct {
	store  uuid.UUID // the new one
	at     time.Time
	header object.Archive
	limits limits
	groups []Group
	byID   map[uuid.UUID]int // position in groups

	mu   sync.Mutex
	busy bool  // an image is open, or being made. Guarded by mu
	last *plan // of the image that was made last; nil: none. Guarded by mu
}

// Group is one group of the archive at the time of a restore.
type Group struct {
	Name   string    // empty if it is not known, because the group cannot be read
	UUID   uuid.UUID // in the new store
	Source uuid.UUID // in the archive; zero if the archive does not have the group
	Index  uint64    // the time stands for this index; 0 if Err is set
	// Err is why the group cannot be restored; nil: it can be. It is a *reader.RefusedError if the objects can be read,
	// but do not tell what the group held at the time.
	Err error

	from *reader.Group
}

// Errors of Restore.Image and Image.Open.
var (
	// ErrNoFile means that the group has no file of the name, or that the file is shorter than the offset.
	ErrNoFile = errors.New("the restored group has no such file")
	// ErrBusy means that the image of another group is open.
	ErrBusy = errors.New("another group is being restored")
	// ErrUnknown means that no group of the restore has the UUID.
	ErrUnknown = errors.New("the restore has no such group")
)

// New finds out what each group of an archive held at a time. The store is the UUID of the new store. Groups that the
// archive knows to be deleted are left out if it does not cover them at that time. The archive must not be used by
// others from then on.
func New(ctx context.Context, a *reader.Archive, store uuid.UUID, at time.Time) (*Restore, error) {
	if store == a.Store() || store == uuid.Nil {
		return nil, fmt.Errorf("the new store needs a UUID of its own, and not %s", store)
	}
	r := &Restore{store: store, at: at, header: a.Header(), limits: defaultLimits, byID: map[uuid.UUID]int{}}
	all, broken, err := a.Readable(ctx)
	if err != nil {
		return nil, err
	}
	for id, err := range broken {
		r.groups = append(r.groups, Group{UUID: GroupUUID(store, id), Source: id, Err: err})
	}
	for _, g := range all {
		if g.Gone && at.After(g.Covered) {
			continue
		}
		found := Group{Name: g.Name, UUID: GroupUUID(store, g.UUID), Source: g.UUID, from: g}
		if found.Index, found.Err = g.At(ctx, at); found.Err != nil {
			found.Index = 0
		}
		if err := found.Err; err != nil && !errors.Is(err, reader.ErrRefused) && !reader.IsBroken(err) {
			return nil, err
		}
		r.groups = append(r.groups, found)
	}
	r.oneOfEachName()
	r.addMissing()
	for i, g := range r.groups {
		r.byID[g.UUID] = i
	}
	return r, nil
}

// GroupUUID returns the UUID that a group of an archive has in a new store. It is the same in each process, so that a
// source needs no memory of which group is which.
func GroupUUID(store, group uuid.UUID) uuid.UUID { return uuid.NewSHA1(store, group[:]) }

// oneOfEachName leaves one group of each name: only one existed at the time. A group that can be restored existed then,
// so the others of its name were created after it was deleted.
func (r *Restore) oneOfEachName() {
	slices.SortStableFunc(r.groups, func(a, b Group) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(rank(a), rank(b)), bytes.Compare(a.Source[:], b.Source[:]))
	})
	r.groups = slices.CompactFunc(r.groups, func(a, b Group) bool { return a.Name == b.Name && a.Name != "" })
}

// rank orders the groups of one name.
func rank(g Group) int {
	switch {
	case g.Err == nil:
		return 0
	case g.from == nil || !g.from.Gone:
		return 1
	}
	return 2
}

// addMissing adds the groups of Hash routing that the archive does not have. Each such store has all of its groups.
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

// Groups returns the groups of the store at the time, in no particular order.
func (r *Restore) Groups() []Group { return slices.Clone(r.groups) }

// Store returns the UUID of the new store.
func (r *Restore) Store() uuid.UUID { return r.store }

// Archive returns the content of archive.json.
func (r *Restore) Archive() object.Archive { return r.header }

// Image makes the image of a group, given its UUID in the new store. The founder is the Raft id of the replica that
// installs it, which is not zero and was never used. One image may be open at a time, because each needs memory: up to
// 24 bytes for each record, about 200 bytes for each put above 1 MiB in the history, and a few MiB. ErrBusy asks the
// caller to try again. The group is read once for its
// image, and once more while its files are read. If the group that was asked for last is asked for again, its plan is
// used again.
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
	p, err := r.begin(group)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.end(nil)
		}
	}()
	if p == nil {
		identity := format.Identity{Store: r.store, Group: group, Name: g.Name}
		if p, err = makePlan(ctx, g.from, identity, g.Index, r.limits); err != nil {
			return nil, err
		}
	}
	return newImage(p, founder, func() { r.end(p) })
}

// begin takes the place of the only open image, and returns the plan of the group if it was made last.
func (r *Restore) begin(group uuid.UUID) (*plan, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy {
		return nil, ErrBusy
	}
	r.busy = true
	if r.last != nil && r.last.identity.Group != group {
		r.last = nil // its memory is needed
	}
	return r.last, nil
}

// end gives the place back, and keeps a plan.
func (r *Restore) end(p *plan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = false
	if p != nil {
		r.last = p
	}
}
