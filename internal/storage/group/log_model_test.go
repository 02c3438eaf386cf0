package group

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestReloadEqualsTheModel performs random operations on a log (append, apply, seal, reload), in alternating
// residencies. Every read must return the same as the model, before and after a reload.
func TestReloadEqualsTheModel(t *testing.T) {
	soaktest.Check(t, func(rt *rapid.T) {
		mem := vfstest.NewMem()
		w := newWorkload(t, rapid.Uint64().Draw(rt, "seed"), mem, mem, Residency(rapid.IntRange(0, 1).Draw(rt, "residency")))
		w.opts.SegmentBytes = rapid.Int64Range(1<<10, 16<<10).Draw(rt, "segment bytes")
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				if err := w.appendBatch(w.model.last+1, w.batch()); err != nil {
					rt.Fatal(err)
				}
			},
			"conflict": func(rt *rapid.T) {
				if w.model.last == w.model.applied {
					rt.Skip("nothing to cut")
				}
				from := rapid.Uint64Range(w.model.applied+1, w.model.last).Draw(rt, "from")
				if err := w.conflict(from); err != nil {
					rt.Fatal(err)
				}
			},
			"sync": func(rt *rapid.T) {
				if err := w.sync(); err != nil {
					rt.Fatal(err)
				}
			},
			"apply": func(rt *rapid.T) {
				if err := w.apply(); err != nil {
					rt.Fatal(err)
				}
			},
			"blob": func(rt *rapid.T) {
				if err := w.putBlob(); err != nil {
					rt.Fatal(err)
				}
			},
			"seal": func(rt *rapid.T) {
				if err := w.log.Seal(); err != nil {
					rt.Fatal(err)
				}
			},
			"reload": func(rt *rapid.T) {
				w.opts.Residency = 1 - w.opts.Residency
				if err := w.reload(); err != nil {
					rt.Fatal(err)
				}
			},
			"": func(rt *rapid.T) {
				if err := w.equal(); err != nil {
					rt.Fatal(err)
				}
			},
		})
		if err := w.log.Close(true); err != nil {
			rt.Fatal(err)
		}
	})
}

// equal compares the log with the model up to the model's applied index.
func (w *workload) equal() error {
	m := w.model
	var log []modelEntry
	for at := uint64(1); at <= m.applied; at++ {
		all := m.byIndex[at]
		log = append(log, all[len(all)-1])
	}
	if got := w.log.AppliedIndex(); got != m.applied {
		return fmt.Errorf("applied index %d, want %d", got, m.applied)
	}
	return m.compare(w.log, log)
}
