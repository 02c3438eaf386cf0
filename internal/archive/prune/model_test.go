package prune

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

const (
	window = 48 * time.Hour
	hour   = 3600
)

// model is an archive that the test writes, prunes and reads at random.
type model struct {
	t      *testing.T
	dice   *rand.Rand
	bucket *clocked
	w      *archivetest.Writer
	store  *Store
	points []*object.Point // points that have not been dropped
	made   int

	damaged []string // names of catalogues that cannot be read any more
	reader  *running // a reader that has opened the archive and goes on reading, or nil

	groups, deleted, dropped, refused, exact, pointReads int // what happened
	waits, lateReads                                     int // prunes that a use stopped; reads of readers
	forgotten                                            int // deleted groups whose history was pruned
	overlaps                                             int // further copies with deletes that were added
	latePoints, honoured, latePointsRefused              int // points that were created during a run
	copies, unbased, races                               int // groups that were copied again; of these, those with a base
}

func newModel(t *testing.T, seed uint64) *model {
	b := &clocked{Memory: archivetest.NewMemory(), now: archivetest.Begin, created: map[string]time.Time{}}
	first, second := keyOf(t, 7), keyOf(t, 8)
	key, keys := object.Key{}, object.Keys{first, second}
	switch seed % 3 { // in a third of the models, nothing is encrypted
	case 1:
		key = first
	case 2:
		keys = nil
	}
	w := archivetest.New(t, b, archivetest.SampleStore, key)
	m := &model{t: t, dice: rand.New(rand.NewPCG(seed, 1)), bucket: b, w: w,
		store: &Store{Bucket: b, UUID: archivetest.SampleStore, Key: key, Keys: keys}}
	for i := range 3 {
		g := w.NewGroup(fmt.Sprintf("g%d", i), byte(i+1))
		m.writes(g, m.dice.IntN(4))
		w.Copy(g, 2)
	}
	return m
}

func keyOf(t *testing.T, fill byte) object.Key {
	t.Helper()
	key, err := object.NewKey(bytes.Repeat([]byte{fill}, object.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// writes commits n entries.
func (m *model) writes(g *archivetest.Group, n int) {
	for range n {
		id := m.dice.Int64N(5)
		switch m.dice.IntN(8) {
		case 0, 1:
			g.Delete(id)
		case 2:
			g.Empty()
		case 3:
			g.PutBlob(id, []byte(fmt.Sprintf("blob %d", m.dice.Uint64())))
		default:
			g.Put(id, fmt.Sprintf("data %d", m.dice.Uint64()))
		}
		m.w.Wait(m.dice.Int64N(2 * hour))
	}
}

// step writes to the groups and lets some hours pass. It may also create or drop a point, or prune the archive.
func (m *model) step() {
	living := m.living()
	for _, g := range living {
		m.writes(g, m.dice.IntN(5))
	}
	m.w.Wait(m.dice.Int64N(3 * hour))
	m.bucket.now = m.w.Now()
	m.w.Log(living...)
	for _, g := range living {
		if m.dice.IntN(2) == 0 {
			m.w.Roll(g)
		}
	}
	if m.dice.IntN(4) == 0 || m.reader != nil && m.reader.until.Before(m.w.Now().Add(15*hour*time.Second)) {
		m.read()
	}
	if m.dice.IntN(30) == 0 {
		m.copyAgain(living[m.dice.IntN(len(living))])
	}
	if m.dice.IntN(15) == 0 {
		m.missed(living[m.dice.IntN(len(living))])
	}
	if m.dice.IntN(15) == 0 {
		m.replace(living[m.dice.IntN(len(living))])
	}
	switch m.dice.IntN(5) {
	case 0:
		m.made++
		p, err := m.store.CreatePoint(m.t.Context(), PointSpec{Name: fmt.Sprintf("p%d", m.made), Made: object.MadeByHand},
			m.w.Now())
		if err != nil {
			m.t.Fatal(err)
		}
		m.points = append(m.points, p)
	case 1:
		if len(m.points) > 0 && m.dice.IntN(2) == 0 {
			at := m.dice.IntN(len(m.points))
			if err := m.store.DropPoint(m.t.Context(), m.points[at].Name, m.w.Now()); err != nil {
				m.t.Fatal(err)
			}
			m.points = append(m.points[:at], m.points[at+1:]...)
		}
	case 2, 3:
		m.prune()
	}
}

// living returns the groups that were not deleted.
func (m *model) living() []*archivetest.Group {
	return slices.DeleteFunc(slices.Clone(m.w.Groups), func(g *archivetest.Group) bool { return g.Gone })
}

// replace deletes a group, and creates another one of the same name.
func (m *model) replace(g *archivetest.Group) {
	g.Gone = true
	m.w.Log(g)
	m.w.Roll(g)
	next := m.w.NewGroup(g.Name, byte(len(m.w.Groups)+1))
	m.writes(next, m.dice.IntN(4))
	m.w.Copy(next, 2)
	m.w.Log(next) // a point cannot be created until it is known up to when the group is archived
}

// prune prunes the archive, and compares the results of reads before and after.
func (m *model) prune() {
	m.t.Helper()
	moments := m.moments()
	before := m.times(moments)
	now := m.w.Now()
	raced := m.copyDuringARun()
	m.pointDuringARun()
	report, err := m.store.Run(m.t.Context(), Options{Window: window, Now: func() time.Time { return now },
		segmentBytes: 1000})
	m.bucket.onList = nil
	if err != nil && (!*raced || !errors.Is(err, object.ErrCorrupt)) {
		m.t.Fatal(err)
	}
	if *raced {
		m.races++
		m.check()
		return
	}
	if isUsed := m.reader != nil && m.reader.use != ""; isUsed != (report.InUse != "") {
		m.t.Errorf("used: %v, pruning says %q", isUsed, report.InUse)
	} else if isUsed {
		m.waits++
	}
	m.forgotten, m.honoured = m.forgotten+report.Forgotten, m.honoured+report.Honoured
	m.groups, m.deleted, m.dropped = m.groups+report.Groups, m.deleted+int(report.Deleted), m.dropped+int(report.Versions)
	after := m.times(moments)
	for at, was := range before {
		if is := after[at]; at.nanos >= now.Add(-window).UnixNano() && is != was {
			m.t.Errorf("%s as of %s: %s before, %s after", at.group, time.Unix(0, at.nanos), was, is)
		}
	}
	m.check()
}

// moment is a time for which a test reads the state of a group.
type moment struct {
	group string
	nanos int64
}

// moments returns, for entries chosen at random, the commit time and the nanosecond before it.
func (m *model) moments() map[*archivetest.Group][]int64 {
	moments := map[*archivetest.Group][]int64{}
	for _, g := range m.w.Groups {
		entries := g.Entries()
		for _, e := range entries {
			if e.CommitTime != 0 && m.dice.IntN(len(entries)) < 20 {
				moments[g] = append(moments[g], e.CommitTime-1, e.CommitTime)
			}
		}
	}
	return moments
}

// times returns, for each group and time, the index that corresponds to the time, or "refused". It reads the group as
// of each time that is not refused, and compares the result with the truth.
func (m *model) times(moments map[*archivetest.Group][]int64) map[moment]string {
	m.t.Helper()
	ctx := m.t.Context()
	times := map[moment]string{}
	a, err := reader.Open(ctx, m.bucket, m.store.UUID, m.store.Keys)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, g := range m.w.Groups {
		read, err := a.Group(ctx, g.UUID)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, nanos := range moments[g] {
			at := moment{group: g.Name, nanos: nanos}
			index, err := read.At(ctx, time.Unix(0, nanos))
			switch {
			case errors.Is(err, reader.ErrRefused):
				m.refused++
				times[at] = "refused"
			case err != nil:
				m.t.Fatal(err)
			default:
				m.exact++
				times[at] = fmt.Sprintf("index %d", index)
				m.equal(ctx, read, g, index)
			}
		}
	}
	return times
}

// equal compares a group's state as of an index with the truth.
func (m *model) equal(ctx context.Context, read *reader.Group, g *archivetest.Group, index uint64) {
	m.t.Helper()
	want := g.State(index)
	for v, err := range read.State(ctx, index) {
		if err != nil {
			m.t.Fatalf("%s as of index %d: %v", read, index, err)
		}
		r, ok := want[v.Entry.ID]
		if !ok || r.Entry.Index != v.Entry.Index {
			m.t.Fatalf("%s as of index %d: record %d has index %d, and had %d", read, index, v.Entry.ID, v.Entry.Index,
				r.Entry.Index)
		}
		src, err := v.Open(ctx)
		if err != nil {
			m.t.Fatal(err)
		}
		data, err := io.ReadAll(src)
		if err != nil || string(data) != string(r.Data) {
			m.t.Fatalf("record %d: %q, %v, and was %q", v.Entry.ID, data, err, r.Data)
		}
		delete(want, v.Entry.ID)
	}
	if len(want) > 0 {
		m.t.Fatalf("%s as of index %d: %d records are missing", read, index, len(want))
	}
}

// check reads every point that has not been dropped, and verifies the archive.
func (m *model) check() {
	m.t.Helper()
	ctx := m.t.Context()
	a, err := reader.Open(ctx, m.bucket, m.store.UUID, m.store.Keys)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, p := range m.points {
		groups, err := a.Point(ctx, p.Name)
		if err != nil || len(groups) != len(p.Groups) || len(groups) < len(m.living()) {
			m.t.Fatalf("point %s: %d groups, %v", p.Name, len(groups), err)
		}
		for _, g := range m.w.Groups {
			if _, ok := groups[g.UUID]; !ok {
				continue
			}
			read, err := a.Group(ctx, g.UUID)
			if err != nil {
				m.t.Fatal(err)
			}
			m.pointReads++
			m.equal(ctx, read, g, groups[g.UUID])
		}
	}
	report, err := reader.Verify(ctx, m.bucket, m.store.UUID, m.store.Keys, reader.VerifyOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, p := range report.Problems {
		if slices.ContainsFunc(m.damaged, func(name string) bool { return strings.Contains(p.What, name) }) {
			continue
		}
		m.t.Errorf("verify: %s: %s", p.Group, p.What)
	}
}

// After each prune, reads as of every time in the window and of every point return exactly what they returned before.
// No read as of any other time returns a wrong result.
func TestPruningKeepsTheWindowAndThePoints(t *testing.T) {
	var sum model
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newModel(t, seed)
			for n := range 50 {
				if n == 25 && m.store.Keys != nil {
					m.store.Key = m.store.Keys[1] // switches encryption on, or replaces the key
					m.w.Key = m.store.Key
				}
				m.step()
				if t.Failed() {
					return
				}
			}
			m.prune()
			sum.groups, sum.deleted, sum.dropped = sum.groups+m.groups, sum.deleted+m.deleted, sum.dropped+m.dropped
			sum.latePoints, sum.honoured = sum.latePoints+m.latePoints, sum.honoured+m.honoured
			sum.latePointsRefused += m.latePointsRefused
			sum.forgotten, sum.overlaps = sum.forgotten+m.forgotten, sum.overlaps+m.overlaps
			sum.copies, sum.unbased, sum.races = sum.copies+m.copies, sum.unbased+m.unbased, sum.races+m.races
			sum.waits, sum.lateReads = sum.waits+m.waits, sum.lateReads+m.lateReads
			sum.refused, sum.exact, sum.pointReads = sum.refused+m.refused, sum.exact+m.exact, sum.pointReads+m.pointReads
		})
	}
	t.Logf("%d bases, %d versions left out, %d objects deleted", sum.groups, sum.dropped, sum.deleted)
	t.Logf("%d reads refused, %d exact, %d of points, %d of readers; %d prunes waited", sum.refused, sum.exact,
		sum.pointReads, sum.lateReads, sum.waits)
	t.Logf("%d points were created during a run, %d of them were overlooked by a base, %d were refused", sum.latePoints,
		sum.honoured, sum.latePointsRefused)
	t.Logf("%d groups were copied again, %d of them with a base, %d during a run, %d because deletes were missing; %d "+
		"deleted groups were forgotten", sum.copies, sum.unbased, sum.races, sum.overlaps, sum.forgotten)
	if sum.groups < 20 || sum.deleted < 200 || sum.dropped < 200 || sum.refused < 300 || sum.pointReads < 300 ||
		sum.unbased < 5 || sum.overlaps < 5 || sum.latePoints < 10 || sum.honoured < 2 ||
		sum.races < 5 || sum.forgotten < 5 || sum.waits < 10 || sum.lateReads < 200 {
		t.Error("too little happened")
	}
}

// names returns the names of those objects whose names contain the given text.
func names(b *archivetest.Memory, part string) (found []string) {
	for _, name := range b.Names() {
		if strings.Contains(name, part) {
			found = append(found, name)
		}
	}
	return found
}

func group(n byte) uuid.UUID { return uuid.UUID{0x67, 15: n} }
