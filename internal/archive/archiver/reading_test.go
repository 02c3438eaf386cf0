package archiver

import (
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Archivers leave behind an archive after faults, kills, pauses and compactions. Package reader must be able to read
// it: as of every index and every time, it either returns what was written, or refuses to answer.
func TestTheReaderAnswersWhatWasWritten(t *testing.T) {
	answered, refused := 0, 0
	for seed := range uint64(2) {
		synctest.Test(t, func(t *testing.T) {
			w := &world{
				t: t, rng: rand.New(rand.NewPCG(seed, 5)), model: newModel(seed, 4), memory: newMemory(),
				fired: make(map[string]int),
			}
			w.model.rate = 0.02
			for n := range uint64(3) {
				w.lives(time.Minute)
				w.phase(seed*100 + n*10)
			}
			w.calm()
			b := w.memory.copy()
			report, err := reader.Verify(t.Context(), b, w.model.store, w.memory.keys, reader.VerifyOptions{})
			if err != nil || len(report.Problems) > 0 || report.Records == 0 || report.Blobs == 0 {
				t.Fatalf("report %+v, error %v", report, err)
			}
			a, err := reader.Open(t.Context(), b, w.model.store, w.memory.keys)
			if err != nil {
				t.Fatal(err)
			}
			groups, err := a.Groups(t.Context())
			if err != nil || len(groups) != len(w.model.groups) {
				t.Fatalf("%d groups, error %v", len(groups), err)
			}
			for _, g := range groups {
				all := w.model.groups[g.UUID].all
				if g.Through < all[len(all)-1].Index || g.Missing != "" {
					t.Errorf("%s ends at %d, not at %d: %s", g, g.Through, all[len(all)-1].Index, g.Missing)
				}
				for i := 0; i < len(all); i += 7 {
					index, upTo := all[i].Index, all[i].Index
					if at := all[i].CommitTime; at != 0 && i%2 == 0 {
						index, err = g.At(t.Context(), time.Unix(0, at))
						for j := i; j < len(all) && all[j].CommitTime <= at; j++ {
							upTo = all[j].Index // At returns the last of several entries with the same commit time
						}
					} else {
						err = g.Check(t.Context(), index)
					}
					switch {
					case errors.Is(err, reader.ErrRefused):
						refused++
						continue
					case err != nil:
						t.Fatal(err)
					}
					answered++
					stateIs(t, g, index, all, upTo)
				}
			}
		})
	}
	if answered < 100 || refused < 10 {
		t.Errorf("%d questions were answered and %d refused", answered, refused)
	}
}

// stateIs compares a group's state as of an index with the state that results from all entries up to another index.
func stateIs(t *testing.T, g *reader.Group, index uint64, all []format.Entry, upTo uint64) {
	t.Helper()
	want := make(map[int64]*format.Entry)
	for i := range all {
		e := &all[i]
		switch {
		case e.Index > upTo:
		case e.Kind == format.KindPut:
			want[e.ID] = e
		case e.Kind == format.KindDelete:
			delete(want, e.ID)
		}
	}
	for v, err := range g.State(t.Context(), index) {
		if err != nil {
			t.Fatal(err)
		}
		e := want[v.Entry.ID]
		if e == nil || e.Index != v.Entry.Index || e.CommitTime != v.Entry.CommitTime {
			t.Fatalf("%s as of index %d: %+v, written up to %d was %+v", g, index, v.Entry, upTo, e)
		}
		src, err := v.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(src)
		ref, refErr := e.BlobRef()
		if err := errors.Join(err, refErr, src.Close()); err != nil {
			t.Fatal(err)
		}
		if ref == nil && string(data) != string(e.Data) || ref != nil && format.Checksum(data) != ref.CRC32C {
			t.Fatalf("%s as of index %d: record %d has other data", g, index, e.ID)
		}
		delete(want, e.ID)
	}
	if len(want) > 0 {
		t.Fatalf("%s as of index %d: %d records are missing", g, index, len(want))
	}
}
