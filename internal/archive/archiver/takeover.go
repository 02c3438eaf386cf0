package archiver

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
)

// A predecessor learns that it was taken over when it next tries to create a log object. Until then it may create late
// catalogues, which list segments whose entries are in no log object. Everything in a late catalogue is true, because
// holes are in log objects before they are in catalogues (noteHoles). So a successor must not pass a late catalogue
// over: it would take the entries for missing, or the number of the catalogue for that of another archiver.
//
// After this archiver has created its fence, no predecessor creates a log object any more. Each piece before the fence
// continues from earlier pieces, or from a catalogue that is older than the piece. So whoever first creates the fence,
// then reads the catalogues, and then the pieces before the fence, finds no piece whose predecessors are missing.

// isEarlier reports whether a catalogue that this process did not create is from a predecessor. The member log of a
// catalogue is the number of a log object that existed when it was made. A predecessor creates no catalogue after it
// has read this archiver's fence, unless it first creates a later fence, and is a successor by that.
func (a *Archiver) isEarlier(c *object.Catalogue) bool { return c.Log < a.chain.fence }

// catchUp reads the catalogues that predecessors have created since readCatalogues, and those of groups that no listing
// had, although log objects have pieces of them. It reads these groups again, with their pieces. It returns a
// TakenOverError if a successor has created a catalogue.
func (a *Archiver) catchUp(ctx context.Context) error {
	newest := make(map[uuid.UUID]uint64) // number of each group's newest catalogue; 0 if none is known
	for id := range a.unlisted {
		newest[id] = 0
	}
	for id, number := range a.damaged {
		newest[id] = number
	}
	for id, g := range a.groups {
		newest[id] = g.number
	}
	newer := make(map[uuid.UUID]*group)
	for id, number := range newest {
		found, err := a.useCatalogue(ctx, &group{id: id}, number+1)
		if err == nil && (found || number == 0) {
			newer[id], err = a.readCatalogue(ctx, id)
		}
		if err != nil {
			return err
		}
	}
	if err := a.recoverPieces(ctx, newer); err != nil {
		return err
	}
	for _, g := range newer {
		a.found(g)
	}
	return nil
}

// recoverPieces records the pieces of groups whose catalogues were read after this archiver took over. It returns a
// TakenOverError if a successor has created one of these catalogues. It is safe for concurrent use.
func (a *Archiver) recoverPieces(ctx context.Context, groups map[uuid.UUID]*group) error {
	from := a.chain.fence
	for _, g := range groups {
		if !a.isEarlier(&g.catalogue) {
			return a.chain.named(ctx, &TakenOverError{Object: object.CatalogueName(g.id, g.number)})
		}
		if g.isKnown() && !g.gone {
			from = min(from, g.catalogue.Log)
		}
	}
	for number := from + 1; number < a.chain.fence; number++ {
		e, l, err := a.objects.logHeader(ctx, number)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, object.ErrCorrupt):
			a.board.failed(ReasonGap, err) // the groups that need the object are resumed with a gap
			continue
		case err != nil:
			return err
		}
		recoverInto(groups, number, e, l)
	}
	return nil
}

// adoptCatalogue handles the error of an attempt to create the group's next catalogue. If a predecessor has created a
// catalogue of that number, it adopts it, and returns nil. Otherwise it returns the error.
func (a *Archiver) adoptCatalogue(ctx context.Context, g *group, err error) error {
	var other *TakenOverError
	if !errors.As(err, &other) {
		return err
	}
	late := &group{id: g.id}
	found, readErr := a.useCatalogue(ctx, late, g.number+1)
	switch {
	case readErr != nil:
		return readErr
	case !found || !late.isKnown() || !a.isEarlier(&late.catalogue):
		return err
	}
	a.opts.Log.Info("a catalogue of an archiver that was taken over is adopted", "group", g.name,
		"catalogue", other.Object, "through", late.catalogue.Through)
	g.adopt(&late.catalogue)
	a.count()
	return nil
}

// adopt continues the group from a predecessor's catalogue, whose number is the next one. It drops everything that no
// log object records, because segments must not overlap: prune rewrites no group whose segments do. The next round
// requests the dropped entries again. The shards still have them, because they are above the mark.
func (g *group) adopt(c *object.Catalogue) {
	g.number++
	for _, h := range c.Holes {
		g.holes = mergeHole(g.holes, h)
	}
	if c.Through < g.catalogue.Through || slices.ContainsFunc(g.catalogue.Segments, func(ref object.SegmentRef) bool {
		return !slices.Contains(c.Segments, ref)
	}) {
		g.isBroken = true // the predecessor could not read this group's catalogue, so only a new one has all segments
		return
	}
	g.catalogue, g.gone, g.goneNoted = *c, g.gone || c.Gone, g.goneNoted || c.Gone
	g.fresh, g.freshThrough = nil, 0
	g.forget()
}

// foundInstead handles the error of an attempt to create the first catalogue of a copied group. If a predecessor has
// created a catalogue of the group, it returns the group as it is in the bucket, so that the copy is not needed.
// Otherwise it returns the error. It is safe for concurrent use.
func (a *Archiver) foundInstead(ctx context.Context, id uuid.UUID, err error) (*group, error) {
	var other *TakenOverError
	if !errors.As(err, &other) {
		return nil, err
	}
	g, readErr := a.readCatalogue(ctx, id)
	switch {
	case readErr != nil:
		return nil, readErr
	case !g.isKnown():
		return nil, err
	}
	if err := a.recoverPieces(ctx, map[uuid.UUID]*group{id: g}); err != nil {
		return nil, err
	}
	a.resume(g)
	return g, nil
}
