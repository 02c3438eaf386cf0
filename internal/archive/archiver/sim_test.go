package archiver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// smallLimits are so small that a few bytes suffice to cause new segments, rolls and a full memory.
var smallLimits = limits{
	pendingBytes: 8 << 10, atOnceBytes: 5 << 10, segmentBytes: 12 << 10, looseBytes: 12 << 10, cacheBytes: 16 << 10,
	cachedBytes: 3 << 10, pieces: 3, renewAfter: 20,
}

func options(m *model, v *view) Options {
	return Options{
		Bucket: v, Source: m, Store: m.store, Name: "quotes", Routing: "hash", Groups: 4, Roll: 5 * time.Minute,
		Idle: 2 * time.Minute, Key: v.memory.keys.First(), Keys: v.memory.keys,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// process is one running archiver.
type process struct {
	*Archiver
	view  *view
	stop  context.CancelFunc
	ended chan error
}

var errKilled = errors.New("killed")

// begin starts an archiver. The view may kill it (killAt).
func begin(m *model, v *view, l limits, change ...func(o *Options)) *process {
	ctx, cancel := context.WithCancelCause(context.Background())
	o := options(m, v)
	for _, c := range change {
		c(&o)
	}
	p := &process{Archiver: newArchiver(mustComplete(o), l), view: v, ended: make(chan error, 1)}
	p.stop = func() { cancel(errKilled) }
	v.kill = p.stop
	go func() { p.ended <- p.Run(ctx) }()
	return p
}

func mustComplete(o Options) Options {
	if err := o.complete(); err != nil {
		panic(err)
	}
	return o
}

// end stops the process and returns its error, or nil if the process was stopped or killed.
func (p *process) end() error {
	p.stop()
	err := <-p.ended
	if errors.Is(err, errKilled) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// hasEnded returns why a process has ended by itself.
func (p *process) hasEnded() (error, bool) { //nolint:revive // the error is a value here
	select {
	case err := <-p.ended:
		p.ended <- err
		return err, true
	default:
		return nil, false
	}
}

// world is one run of the simulation.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	model  *model
	memory *memory
	fired  map[string]int
	asked  int

	losses bool // whether the store loses entries

	rotates bool // whether the key of the archive changes now and then
	rotated bool // whether it has changed in this phase
}

// rotate changes the key of the archive, for the archivers that start from now on.
func (w *world) rotate() {
	if w.rotates {
		w.memory.rotate()
		w.rotated = true
		w.fired["rotated"]++
	}
}

// asks checks the positions that an archiver reports to the leaders: everything up to each position must be readable
// now.
func (w *world) asks(positions map[uuid.UUID]uint64) {
	if w.asked++; w.asked%4 != 0 || w.t.Failed() {
		return
	}
	if _, err := w.model.check(w.memory, positions); err != nil {
		w.t.Errorf("the marks %v are not true: %v", positions, err)
	}
}

// lives writes to the store and compacts it for the given time.
func (w *world) lives(d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until); {
		g := w.model.one(byte(w.rng.IntN(len(w.model.groups))))
		if g.deleted {
			continue
		}
		switch n := w.rng.IntN(60); {
		case n < 3:
			w.model.compact(g, n == 0)
			if w.rng.IntN(2) == 0 {
				w.model.compact(g, n == 0) // the second one drops deletes
			}
		case n == 4 && w.rng.IntN(4) == 0:
			w.model.forgetHold(g)
		case n == 5 && w.losses && w.rng.IntN(4) == 0:
			w.model.loseSome(g, w.rng.IntN(2) == 0)
		case n == 3:
			for range 60 {
				w.model.write(g, w.rng.IntN(600))
			}
		default:
			w.model.write(g, w.rng.IntN(300))
		}
		time.Sleep(time.Duration(w.rng.IntN(4000)) * time.Millisecond)
	}
}

// phase runs one or two archivers for some minutes, with faults. It kills or pauses them at random.
func (w *world) phase(seed uint64) {
	w.rotated = false
	v := newView(w.memory, seed, 0.05)
	if w.rng.IntN(2) == 0 {
		v.killAt, v.before = 1+w.rng.IntN(120), w.rng.IntN(2) == 0
	}
	first := begin(w.model, v, smallLimits)
	w.lives(time.Duration(1+w.rng.IntN(5)) * time.Minute)
	running := []*process{first}
	switch w.rng.IntN(3) {
	case 0: // a second archiver starts while the first one runs
		w.rotate()
		running = append(running, begin(w.model, newView(w.memory, seed+1, 0.05), smallLimits))
		w.lives(3 * time.Minute)
		w.fired["two at once"]++
	case 1: // the first archiver is paused, and continues after a second one has taken over
		blocked := make(chan struct{})
		v.change(func(v *view) { v.blocked = blocked })
		w.lives(time.Minute)
		w.rotate()
		running = append(running, begin(w.model, newView(w.memory, seed+1, 0.05), smallLimits))
		w.lives(3 * time.Minute)
		v.change(func(v *view) { v.blocked = nil })
		close(blocked)
		w.lives(2 * time.Minute)
		w.fired["paused"]++
	}
	for _, p := range running {
		err := p.end()
		var other *TakenOverError
		switch {
		case errors.As(err, &other):
			w.fired["taken over"]++
		case errors.Is(err, object.ErrKey) && w.rotated && p == first && len(running) > 1:
			w.fired["superseded by an archiver with a newer key"]++
		case err != nil:
			w.t.Errorf("an archiver ended: %v", err)
		}
		if p.view.isDead {
			w.fired["killed"]++
		}
		for f, n := range p.view.fired {
			w.fired[string(f)] += n
		}
	}
}

// calm runs one archiver without faults until everything is archived and in segments.
func (w *world) calm() *archive {
	w.model.rate = 0
	p := begin(w.model, newView(w.memory, 0, 0), smallLimits)
	for i := range byte(len(w.model.groups)) {
		if g := w.model.one(i); !g.deleted {
			w.model.write(g, 10)
		}
	}
	time.Sleep(15 * time.Minute)
	synctest.Wait()
	if err, ended := p.hasEnded(); ended {
		w.t.Errorf("the last archiver ended: %v", err)
	}
	if err := p.end(); err != nil {
		w.t.Error(err)
	}
	all := make(map[uuid.UUID]uint64)
	for id, g := range w.model.groups {
		if all[id] = g.applied(); g.deleted {
			all[id] = 0 // entries that were not archived before the group was deleted are lost
		}
	}
	a, err := w.model.check(w.memory, all)
	if err != nil {
		w.t.Fatalf("%v; status %+v", err, p.Status())
	}
	report, err := reader.Verify(context.Background(), newView(w.memory, 0, 0), w.model.store, w.memory.keys,
		reader.VerifyOptions{})
	if err != nil || len(report.Problems) > 0 {
		w.t.Errorf("the archive is not valid: %v, %v", report.Problems, err)
	}
	for id, r := range a.groups {
		if r.pieces > 0 || r.segments == 0 || r.gone != w.model.groups[id].deleted {
			w.t.Errorf("group %s: %d pieces are not rolled, %d segments, gone %v", id, r.pieces, r.segments, r.gone)
		}
		w.fired["holes"] += len(r.holes)
		w.fired["segments"] += r.segments
	}
	return a
}

// seeds returns how many worlds to simulate: 1 in a short run, 80 in a soak, or the requested number.
func seeds() int {
	if n, err := strconv.Atoi(os.Getenv("SHEAF_ARCHIVER_SEEDS")); err == nil {
		return n
	}
	switch {
	case soaktest.Long():
		return 80
	case testing.Short():
		return 1
	}
	return 4
}

// Whatever faults, kills, pauses and concurrent archivers occur, the bucket alone has everything that was written and
// nothing else. It has no hole that the store did not cause. The marks are correct at all times.
func TestWhateverHappensTheBucketHasWhatTheMarksSay(t *testing.T) {
	fired := make(map[string]int)
	for seed := range uint64(seeds()) {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 3)), model: newModel(seed, 4), memory: newMemory(), fired: fired,
				losses: true}
			w.model.rate, w.model.asked = 0.02, w.asks
			// In a third of the worlds, encryption is switched on for an archive that exists, and keys are replaced. In another
			// third, one key encrypts all objects.
			if w.rotates = seed%3 == 0; seed%3 == 2 {
				w.memory.rotate()
			}
			for i := range byte(4) {
				for range w.rng.IntN(60) {
					w.model.write(w.model.one(i), w.rng.IntN(400))
				}
			}
			w.model.compact(w.model.one(1), false)
			for n := range uint64(5) {
				w.phase(seed*100 + n*10)
				w.model.mu.Lock()
				switch n {
				case 1:
					w.model.add(4)
				case 3:
					w.model.one(2).deleted = true
				}
				w.model.mu.Unlock()
				if n == 1 {
					w.rotate()
				}
			}
			w.calm()
			for what, n := range w.model.fired {
				fired[what] += n
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Log(fmt.Sprint(fired))
	if seeds() < 40 {
		return // in a few worlds, some kinds of faults may not occur
	}
	for _, f := range bucketFaults {
		if fired[string(f)] == 0 {
			t.Errorf("no fault: %s", f)
		}
	}
	for _, what := range []string{"two at once", "paused", "taken over", "killed", "holes", "two leaders answer",
		"a group does not answer", "a stream ends early", "a blob cannot be had", "a blob comes damaged",
		"rotated", "a copy cannot be had", "a file of a copy breaks off", "a file of a copy comes damaged",
		"deletes are missing", "a loss was accepted"} {
		if fired[what] == 0 {
			t.Errorf("never: %s", what)
		}
	}
}
