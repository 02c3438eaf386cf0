package prune

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// copyAgain damages all catalogues of a group. An archiver that starts then copies the group again, so the group's
// bases are no longer in effect. Points before the new history floor cannot be read any more, and are dropped.
func (m *model) copyAgain(g *archivetest.Group) {
	m.t.Helper()
	ctx := m.t.Context()
	a, err := m.store.open(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	read, err := a.Group(ctx, g.UUID)
	if err != nil {
		m.t.Fatal(err)
	}
	m.copies++
	if read.Base() != nil {
		m.unbased++
	}
	for _, name := range names(m.bucket.Memory, object.CataloguePrefix(g.UUID)) {
		content := bytes.Clone(m.bucket.Get(name))
		content[len(content)-1] ^= 1
		m.bucket.Set(name, content)
		m.damaged = append(m.damaged, strings.TrimPrefix(name, m.store.UUID.String()+"/"))
	}
	floor := max(g.Through()-m.dice.Uint64N(max(1, min(g.Through(), 20))), g.Floor)
	m.w.CopyAgain(g, floor, 20)
	m.points = slices.DeleteFunc(m.points, func(p *object.Point) bool {
		lost := slices.ContainsFunc(p.Groups, func(in object.PointGroup) bool {
			return in.Group == g.UUID && in.Index < floor
		})
		if lost {
			if err := m.store.DropPoint(ctx, p.Name, m.w.Now()); err != nil {
				m.t.Fatal(err)
			}
		}
		return lost
	})
}

// missed writes to a group whose store drops deletes before they are archived. The archiver adds them.
func (m *model) missed(g *archivetest.Group) {
	m.t.Helper()
	m.w.Log(g)
	m.w.Roll(g)
	for range 1 + m.dice.IntN(3) {
		m.writes(g, m.dice.IntN(3))
		g.Compact(g.Delete(m.dice.Int64N(5)))
	}
	g.Put(m.dice.Int64N(5), "behind the deletes")
	m.w.CopyMissed(g, 2)
	m.overlaps++
}

// copyDuringARun makes some runs of pruning meet a group that is copied again meanwhile. The result becomes true when
// that happens.
func (m *model) copyDuringARun() *bool {
	raced := false
	if m.dice.IntN(10) > 0 {
		return &raced
	}
	listings := m.dice.IntN(40)
	m.bucket.onList = func(string) {
		if listings--; listings == 0 {
			raced, m.bucket.onList = true, nil
			living := m.living()
			m.copyAgain(living[m.dice.IntN(len(living))])
		}
	}
	return &raced
}

// running is a reader that reads the archive for long, as it was when the reader opened it.
type running struct {
	use    string // name of the reader's use in the bucket; empty if the reader ends within a day
	until  time.Time
	opened *reader.Archive
	groups []*reader.Group
}

// read begins a reader, or lets the running one read and end. The reader is protected by a use, or it reads for less
// than a day.
func (m *model) read() {
	m.t.Helper()
	ctx := m.t.Context()
	if m.reader == nil {
		m.reader = &running{until: m.w.Now().Add(dropWait - time.Second)}
		if m.dice.IntN(2) == 0 {
			m.made++
			m.reader.use = fmt.Sprintf("%s%08d-2222-3333-4444-555555555555", object.UsePrefix, m.made)
			m.reader.until = m.w.Now().Add(object.UseMax)
			h := &object.Use{Created: m.w.Now().UnixNano(), Until: m.reader.until.UnixNano(), What: "a reader"}
			if _, err := m.store.create(ctx, m.reader.use, h, nil); err != nil {
				m.t.Fatal(err)
			}
		}
		var err error
		if m.reader.opened, err = m.store.open(ctx); err != nil {
			m.t.Fatal(err)
		}
		if m.reader.groups, err = m.reader.opened.Groups(ctx); err != nil {
			m.t.Fatal(err)
		}
		return
	}
	for _, read := range m.reader.groups {
		for _, g := range m.w.Groups {
			if g.UUID != read.UUID {
				continue
			}
			for _, index := range []uint64{read.Floor, m.dice.Uint64N(read.Through + 1), read.Through} {
				if read.Check(ctx, index) == nil {
					m.lateReads++
					m.equal(ctx, read, g, index)
				}
			}
		}
	}
	if m.reader.use != "" {
		if err := m.store.folder().Delete(ctx, m.reader.use); err != nil {
			m.t.Fatal(err)
		}
	}
	m.reader = nil
}

// pointDuringARun makes some runs of pruning meet a point that is created meanwhile, as of a time before the window.
func (m *model) pointDuringARun() {
	if m.bucket.onList != nil || m.dice.IntN(3) > 0 {
		return
	}
	var times []int64
	for _, g := range m.living() {
		for _, e := range g.Entries() {
			if e.CommitTime != 0 && e.CommitTime < m.w.Now().Add(-window).UnixNano() {
				times = append(times, e.CommitTime)
			}
		}
	}
	if len(times) == 0 {
		return
	}
	at, listings := time.Unix(0, times[m.dice.IntN(len(times))]), m.dice.IntN(40)
	m.bucket.onList = func(string) {
		if listings--; listings != 0 {
			return
		}
		m.bucket.onList = nil
		m.made++
		p, err := m.store.CreatePoint(m.t.Context(), PointSpec{Name: fmt.Sprintf("p%d", m.made), Made: object.MadeByHand,
			Time: at}, m.w.Now())
		switch {
		case errors.Is(err, reader.ErrRefused):
			m.latePointsRefused++
		case err != nil:
			m.t.Fatal(err)
		default:
			m.latePoints++
			m.points = append(m.points, p)
		}
	}
}
