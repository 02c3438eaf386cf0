package archiver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
)

// start finds out from the bucket how far each group is archived, and takes over the chain of log objects. It writes
// nothing until it has verified that the archive belongs to this store and that this program knows its format. It
// therefore reads the archive before it takes over, and afterwards reads what predecessors have created meanwhile.
func (a *Archiver) start(ctx context.Context) error {
	if err := a.checkIdentity(ctx); err != nil {
		return err
	}
	if err := a.readCatalogues(ctx); err != nil {
		return err
	}
	if err := a.readChain(ctx); err != nil {
		return err
	}
	if err := a.createIdentity(ctx); err != nil {
		return err
	}
	if err := a.chain.begin(ctx, a.recover); err != nil {
		return err
	}
	if err := a.catchUp(ctx); err != nil {
		return err
	}
	for _, g := range a.groups {
		a.resume(g)
	}
	a.publish()
	return nil
}

func (a *Archiver) identity() *object.Archive {
	return &object.Archive{
		Store: a.opts.Name, Created: time.Now().UnixNano(), Routing: a.opts.Routing, Groups: a.opts.Groups, Lanes: 1,
	}
}

// checkIdentity returns an error if the archive belongs to another store, or to a store with another routing or
// number of groups. It returns nil if there is no archive yet.
func (a *Archiver) checkIdentity(ctx context.Context) error {
	var is object.Archive
	_, err := a.objects.header(ctx, object.ArchiveName, object.KindArchive, func() object.Header {
		is = object.Archive{}
		return &is
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", object.ArchiveName, err)
	}
	if want := a.identity(); is.Routing != want.Routing || is.Groups != want.Groups {
		return fmt.Errorf("%w: the archive is of a store with routing %q and %d groups, this store has %q and %d",
			object.ErrForeign, is.Routing, is.Groups, want.Routing, want.Groups)
	}
	return nil
}

// createIdentity creates archive.json, or checks the existing one. If two archivers start an archive at the same
// time, one of them creates the object, and the other one checks it.
func (a *Archiver) createIdentity(ctx context.Context) error {
	content, err := a.objects.encode(a.identity(), nil, 0, nil)
	if err != nil {
		return err
	}
	err = a.objects.claim(ctx, object.ArchiveName, content)
	var other *TakenOverError
	if errors.As(err, &other) {
		return a.checkIdentity(ctx)
	}
	return err
}

// readCatalogues finds all groups in the bucket, and reads each group's newest catalogue.
func (a *Archiver) readCatalogues(ctx context.Context) error {
	const all = "g/"
	for after := ""; ; {
		var id uuid.UUID
		if err := a.objects.list(ctx, all, after, func(name string) bool {
			text, _, _ := strings.Cut(strings.TrimPrefix(name, all), "/")
			var err error
			id, err = uuid.Parse(text)
			after = all + text + "0" // the first name that sorts after all objects in this folder
			return err != nil
		}); err != nil {
			return err
		}
		if id == uuid.Nil {
			return nil
		}
		g, err := a.readCatalogue(ctx, id)
		if err != nil {
			return err
		}
		a.found(g)
	}
}

// found records what readCatalogue returned for a group, in place of what it returned earlier.
func (a *Archiver) found(g *group) {
	delete(a.groups, g.id)
	delete(a.damaged, g.id)
	switch {
	case g.isKnown():
		a.groups[g.id] = g
	case g.number > 0:
		a.damaged[g.id] = g.number
	}
}

// readCatalogue reads a group's newest catalogue. Because a listing may be out of date, it also tries the numbers
// that follow the last one listed. If no catalogue can be used, the returned group is not known, and its number is
// that of the newest damaged catalogue, or 0 if there is none. readCatalogue is safe for concurrent use.
func (a *Archiver) readCatalogue(ctx context.Context, id uuid.UUID) (*group, error) {
	var last uint64
	if err := a.objects.list(ctx, object.CataloguePrefix(id), "", func(name string) bool {
		if _, number, ok := object.ParseCatalogueName(name); ok {
			last = number
		}
		return true
	}); err != nil {
		return nil, err
	}
	g := &group{id: id}
	for number := max(last, 1); ; number++ {
		found, err := a.useCatalogue(ctx, g, number)
		if err != nil {
			return nil, err
		}
		if !found {
			break
		}
		g.number = number
	}
	for number := g.number; number > 1 && !g.isKnown(); number-- {
		if _, err := a.useCatalogue(ctx, g, number-1); err != nil { // the newest catalogue is damaged, so use an older one
			return nil, err
		}
	}
	return g, nil
}

// useCatalogue reads a catalogue into the group. It returns false if the catalogue does not exist. If the catalogue
// remains damaged, it leaves the group unchanged, but marks it as broken, so that the group gets a new catalogue.
func (a *Archiver) useCatalogue(ctx context.Context, g *group, number uint64) (bool, error) {
	var c object.Catalogue
	name := object.CatalogueName(g.id, number)
	_, err := a.objects.header(ctx, name, object.KindCatalogue, func() object.Header {
		c = object.Catalogue{}
		return &c
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, object.ErrCorrupt):
		a.board.failed(ReasonGap, err)
		g.isBroken = true
		return true, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", name, err)
	case c.Group != g.id:
		return false, fmt.Errorf("%w: %s is of group %s", object.ErrForeign, name, c.Group)
	}
	g.name, g.catalogue, g.holes, g.gone, g.goneNoted = c.Name, c, c.Holes, c.Gone, c.Gone
	return true, nil
}

// readChain reads, up to the first gap, the log objects with pieces that are not in segments yet.
func (a *Archiver) readChain(ctx context.Context) error {
	var through uint64 // number of the newest log object that a catalogue names
	for _, g := range a.groups {
		through = max(through, g.catalogue.Log)
	}
	from := through
	for _, g := range a.groups {
		if !g.gone {
			from = min(from, g.catalogue.Log)
		}
	}
	// Start with the object before the first one that is needed. Its CRC shows whether the first needed object continues
	// it.
	a.chain.number.Store(max(from, 1) - 1)
	for {
		found, err := a.chain.read(ctx, a.recover)
		if err != nil {
			return err
		}
		if found {
			continue
		}
		if at := a.chain.number.Load(); at < through {
			// Readers start after the log object that a catalogue names, so new log objects must have greater numbers than
			// that one.
			a.board.failed(ReasonGap, fmt.Errorf("%s is missing", object.LogName(at+1)))
			a.chain.number.Store(at + 1)
			a.chain.previous = 0
			continue
		}
		return nil
	}
}

// recover records the pieces of a log object that an earlier process has created.
func (a *Archiver) recover(number uint64, e object.Envelope, l *object.Log) {
	recoverInto(a.groups, number, e, l)
	for i := range l.Pieces {
		if id := l.Pieces[i].Group; a.groups[id] == nil {
			a.unlisted[id] = true
		}
	}
}

func recoverInto(groups map[uuid.UUID]*group, number uint64, e object.Envelope, l *object.Log) {
	offset := e.HeaderBytes
	for i := range l.Pieces {
		p := &l.Pieces[i]
		if g := groups[p.Group]; g != nil && number > g.catalogue.Log && g.gap == nil {
			g.recover(p, loose{Range: p.Range, log: number, object: e, offset: offset, bytes: p.Bytes, at: time.Unix(0, l.Time)})
		}
		offset += p.Bytes
	}
}

// recover records a piece that an earlier process has created. If a piece before it is missing, recover only records
// the gap.
func (g *group) recover(p *object.Piece, l loose) {
	if p.After > g.covered() {
		g.gap = fmt.Errorf("group %s: %s has its entries from %d on, those after %d are missing", p.Name,
			object.LogName(l.log), p.After, g.covered())
		return
	}
	if p.Through > g.catalogue.Through && p.Bytes > 0 {
		g.loose = append(g.loose, l)
	}
	for _, h := range p.Holes {
		g.holes = mergeHole(g.holes, h)
	}
	g.name, g.marked = p.Name, max(g.marked, p.Through)
	g.gone, g.goneNoted = g.gone || p.Gone, g.gone || p.Gone
	g.notedAt = l.at
	if readAt := time.Unix(0, p.ReadAt); p.ReadAt > 0 && readAt.After(g.readAt) {
		g.readAt, g.readNoted = readAt, readAt
	}
}

// resume makes a group that was read from the bucket continue where the bucket ends.
func (a *Archiver) resume(g *group) {
	if g.gap != nil {
		g.isBroken = true
		a.board.failed(ReasonGap, g.gap)
	}
	g.next, g.marked, g.isMarked = g.covered(), g.covered(), true
}
