package archiver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// scene is a test setup in virtual time: a store, a bucket without faults, and one archiver.
type scene struct {
	t      *testing.T
	model  *model
	memory *memory
	view   *view
	*process
}

func inScene(t *testing.T, groups int, l limits, run func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, model: newModel(7, groups), memory: newMemory()}
		asked, stride := 0, 1
		if testing.Short() {
			stride = 8 // each check reads the whole archive, in one goroutine
		}
		s.model.asked = func(marks map[uuid.UUID]uint64) {
			if asked++; asked%stride != 0 || t.Failed() {
				return
			}
			if _, err := s.model.check(s.memory, marks); err != nil {
				t.Errorf("the marks %v are not true: %v", marks, err)
			}
		}
		for i := range groups {
			s.model.write(s.model.one(byte(i)), 100)
		}
		s.restart(l)
		run(s)
		if err := s.end(); err != nil {
			t.Error(err)
		}
	})
}

// restart starts the next archiver.
func (s *scene) restart(l limits, change ...func(o *Options)) {
	s.view = newView(s.memory, 1, 0)
	s.process = begin(s.model, s.view, l, change...)
	time.Sleep(time.Second)
	synctest.Wait()
}

// restartAsUsual ends the archiver, and starts the next one with the times that are usual. Nothing checks the positions
// of each round, because that would take too long.
func (s *scene) restartAsUsual() {
	s.t.Helper()
	if err := s.end(); err != nil {
		s.t.Fatal(err)
	}
	s.model.onAsked(nil)
	s.restart(standardLimits, func(o *Options) { o.Idle, o.Roll = 0, 0 })
}

// current checks that the archive holds everything in the store, and returns the archive.
func (s *scene) current() *archive {
	s.t.Helper()
	all := make(map[uuid.UUID]uint64)
	for id, g := range s.model.groups {
		all[id] = g.applied()
	}
	a, err := s.model.check(s.memory, all)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *scene) created() int { return len(s.memory.names("")) }

func TestWhatIsWrittenIsArchivedWithinTwoIntervals(t *testing.T) {
	inScene(t, 3, standardLimits, func(s *scene) {
		t := s.t
		for range 30 {
			s.model.write(s.model.one(1), 1000)
			time.Sleep(20 * time.Second)
			synctest.Wait()
			a := s.current()
			if r := a.groups[s.model.one(1).id]; len(r.holes) > 0 {
				t.Fatalf("holes %v", r.holes)
			}
		}
		st := s.Status()
		lag := time.Since(st.ArchivedThrough)
		if lag > 11*time.Second || st.Groups != 3 || st.Waiting != 0 || st.LastError != "" || st.Epoch != 1 ||
			st.Objects != int64(s.created()) || st.Number < 30 {
			t.Errorf("status %+v, lag %v", st, lag)
		}
	})
}

// Requests to a bucket cost money. An archiver makes few of them when nothing is written, or when little is written.
func TestRequestsAreFew(t *testing.T) {
	if testing.Short() {
		t.Skip("counts the requests of two days; other tests run the same goroutines")
	}
	inScene(t, 6, standardLimits, func(s *scene) {
		t := s.t
		s.restartAsUsual()
		time.Sleep(time.Hour + time.Minute)
		before := s.created()
		time.Sleep(24 * time.Hour)
		if n := s.created() - before; n < 140 || n > 150 {
			t.Errorf("an idle day makes %d objects", n)
		}
		before = s.created()
		for range 360 {
			for i := range byte(6) {
				s.model.write(s.model.one(i), 10)
			}
			time.Sleep(10 * time.Second)
		}
		// expect one log object for each interval, and at most one segment and one catalogue for each group and hour
		if n := s.created() - before - s.blobs(); n < 355 || n > 365+2*2*6 {
			t.Errorf("a busy hour of 6 groups makes %d objects beside blobs", n)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		for id, r := range s.current().groups {
			if r.pieces > 0 {
				t.Errorf("group %s has %d pieces that were not rolled", id, r.pieces)
			}
		}
	})
}

// A store of 256 groups that are all written to all the time makes at most 25,000 objects a day.
func TestRequestsOfManyBusyGroupsAreFew(t *testing.T) {
	if testing.Short() {
		t.Skip("counts the requests of hours; other tests run the same goroutines")
	}
	inScene(t, 256, standardLimits, func(s *scene) {
		t := s.t
		s.model.steady = true // a jump of an index ends a log object early
		s.restartAsUsual()
		time.Sleep(time.Minute) // long enough for the first copies
		before := s.created() - s.blobs()
		const minutes = 70 // each group is rolled once
		for range minutes * 6 {
			for i := range 256 {
				s.model.write(s.model.one(byte(i)), 10)
			}
			time.Sleep(10 * time.Second)
		}
		n := s.created() - s.blobs() - before
		day := n * 24 * 60 / minutes
		t.Logf("%d minutes make %d objects beside blobs, which is %d a day", minutes, n, day)
		if day > 25_000 || n < minutes*6+256 {
			t.Error("expected are at most 25,000 a day, and a segment of each group")
		}
	})
}

// What is written little by little is uploaded twice: in a log object, and in a segment an hour later. All headers and
// catalogues are counted.
func TestATrickleIsUploadedTwice(t *testing.T) {
	if testing.Short() {
		t.Skip("counts the bytes of hours; other tests run the same goroutines")
	}
	inScene(t, 4, standardLimits, func(s *scene) {
		t := s.t
		s.restartAsUsual()
		before, written := s.uploaded(), 0
		for i := range 2 * 3600 {
			e := s.model.write(s.model.one(byte(i%4)), 4<<10)
			if ref, err := e.BlobRef(); err == nil && ref != nil {
				written += int(ref.Size)
			} else {
				written += len(e.Data)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(90 * time.Minute)
		synctest.Wait()
		ratio := float64(s.uploaded()-before) / float64(written)
		t.Logf("%d bytes were written, and %.2f times as many uploaded", written, ratio)
		if ratio > 2.2 || ratio < 1.8 {
			t.Errorf("%.2f bytes were uploaded for each that was written", ratio)
		}
	})
}

// blobs returns the number of blobs.
func (s *scene) blobs() (n int) {
	for _, name := range s.memory.names("") {
		if strings.Contains(name, "/blob/") {
			n++
		}
	}
	return n
}

// uploaded returns the total size of all objects.
func (s *scene) uploaded() (sum int) {
	for _, name := range s.memory.names("") {
		b, _ := s.memory.get(name)
		sum += len(b)
	}
	return sum
}

// A group in which nothing is written still gets a new catalogue from time to time. Otherwise a reader would have to
// read the whole log for this one group.
func TestACatalogueNeverFallsFarBehind(t *testing.T) {
	inScene(t, 2, smallLimits, func(s *scene) {
		t := s.t
		for range 100 {
			s.model.write(s.model.one(0), 10)
			time.Sleep(20 * time.Second)
		}
		synctest.Wait()
		a := s.current()
		if r := a.groups[s.model.one(1).id]; a.last-r.log > smallLimits.renewAfter || r.catalogues < 4 || r.catalogues > 8 {
			t.Errorf("the quiet group's catalogue %d names log object %d of %d", r.catalogues, r.log, a.last)
		}
	})
}

func TestAnArchiverThatIsTakenOverStopsAndNamesTheOther(t *testing.T) {
	inScene(t, 2, standardLimits, func(s *scene) {
		t := s.t
		first := s.process
		s.restart(standardLimits)
		s.model.write(s.model.one(0), 10)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		err := first.end()
		var other *TakenOverError
		if !errors.As(err, &other) || other.Writer != s.chain.writer || other.Epoch != 2 {
			t.Errorf("the first archiver ended by %v", err)
		}
		if _, ended := s.hasEnded(); ended || s.Status().Epoch != 2 {
			t.Error("the second archiver has ended")
		}
		s.current()
	})
}

// If the response to a create is lost, the archiver creates the same object again. It must not mistake its own object
// for that of another archiver.
func TestALostAnswerIsNoOtherArchiver(t *testing.T) {
	for _, only := range []fault{faultLost, faultRefused, faultPartial, faultSlow} {
		inScene(t, 2, smallLimits, func(s *scene) {
			t := s.t
			s.view.change(func(v *view) { v.rate, v.only = 0.7, only })
			for range 50 {
				s.model.write(s.model.one(0), 200)
				time.Sleep(5 * time.Second)
			}
			s.view.change(func(v *view) { v.rate = 0 })
			time.Sleep(15 * time.Minute)
			synctest.Wait()
			if err, ended := s.hasEnded(); ended || s.current().epochs[2] != uuid.Nil || s.view.fired[only] < 3 {
				t.Errorf("%s, %d times: the archiver ended with %v", only, s.view.fired[only], err)
			}
		})
	}
}

// A log object with the expected number but other bytes was created by another archiver, even if only its last byte
// differs.
func TestOtherBytesAreNotOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(1, 0)
		v := newView(newMemory(), 1, 0)
		a := newArchiver(mustComplete(options(m, v)), standardLimits)
		content, err := a.objects.encode(&object.Log{Epoch: 1, Pieces: []object.Piece{}}, nil, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		other, err := a.objects.encode(&object.Log{Epoch: 1, Pieces: []object.Piece{}}, nil, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		name := object.LogName(1)
		path := m.store.String() + "/" + name
		var taken *TakenOverError
		v.memory.put(path, other)
		if err := a.objects.claim(t.Context(), name, content); !errors.As(err, &taken) {
			t.Errorf("another object: %v", err)
		}
		v.memory.put(path, content)
		if err := a.objects.claim(t.Context(), name, content); err != nil {
			t.Errorf("our own object: %v", err)
		}
		end := len(content) - 1
		for _, changed := range [][]byte{append(bytes.Clone(content), 0), content[:end], flip(content, end)} {
			v.memory.put(path, changed)
			if err := a.objects.isOurs(t.Context(), name, content); err == nil || errors.As(err, &taken) {
				t.Errorf("our own object with a damage: %v", err)
			}
		}
	})
}

func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

func TestAForeignArchiveIsRefusedAndNothingIsWritten(t *testing.T) {
	archiveOf := func(t *testing.T, store uuid.UUID, h object.Header) []byte {
		e, err := object.NewEncoder(object.Spec{Store: store, Header: h})
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(e)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := object.Archive{Store: "quotes", Routing: "hash", Groups: 4, Lanes: 1}
	named := object.Archive{Store: "quotes", Routing: "named", Lanes: 1}
	fewer := good
	fewer.Groups = 3
	m := newModel(1, 1)
	newer := newerVersion(archiveOf(t, m.store, &good))
	for name, c := range map[string]struct {
		objects map[string][]byte
		want    error
	}{
		"another store":      {map[string][]byte{object.ArchiveName: archiveOf(t, uuid.UUID{9}, &good)}, object.ErrForeign},
		"another routing":    {map[string][]byte{object.ArchiveName: archiveOf(t, m.store, &named)}, object.ErrForeign},
		"another number":     {map[string][]byte{object.ArchiveName: archiveOf(t, m.store, &fewer)}, object.ErrForeign},
		"a newer version":    {map[string][]byte{object.ArchiveName: newer}, object.ErrVersion},
		"a newer log object": {map[string][]byte{object.LogName(1): newer}, object.ErrVersion},
		"a newer catalogue":  {map[string][]byte{object.CatalogueName(uuid.UUID{2}, 1): newer}, object.ErrVersion},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newView(newMemory(), 1, 0)
				for name, b := range c.objects {
					v.memory.put(m.store.String()+"/"+name, b)
				}
				p := begin(m, v, standardLimits)
				time.Sleep(time.Hour)
				err, ended := p.hasEnded()
				if !ended || !errors.Is(err, c.want) {
					t.Errorf("error %v", err)
				}
				if names := v.memory.names(""); len(names) != 1 {
					t.Errorf("it wrote %v", names)
				}
				p.stop()
			})
		})
	}
}

// newerVersion returns a copy of an object that claims to have been written by a newer program.
func newerVersion(b []byte) []byte {
	b = bytes.Clone(b)
	b[8] = 2
	crc := crc32.Update(format.Checksum(b[:12]), crc32c.Table, b[16:object.EnvelopeBytes])
	binary.LittleEndian.PutUint32(b[12:], crc)
	return b
}

// While the bucket is unavailable for hours, the store is not slowed down, and the archiver's memory stays bounded.
// Afterwards the archive catches up, and has no hole.
func TestTheBucketIsAwayForHours(t *testing.T) {
	inScene(t, 3, smallLimits, func(s *scene) {
		t := s.t
		time.Sleep(time.Minute)
		s.view.change(func(v *view) { v.rate, v.only = 1, faultRefused })
		before := s.created()
		for n := range 600 {
			g := s.model.one(byte(n % 3))
			s.model.write(g, 300)
			if n%50 == 0 {
				s.model.compact(g, false)
			}
			time.Sleep(20 * time.Second)
		}
		st := s.Status()
		if s.created() != before || st.Errors[ReasonCreate] < 100 || !strings.HasPrefix(st.LastError, "create: ") {
			t.Errorf("%d objects were created; status %+v", s.created()-before, st)
		}
		s.view.change(func(v *view) { v.rate = 0 })
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		for _, r := range s.current().groups {
			if len(r.holes) > 0 {
				t.Errorf("holes %v", r.holes)
			}
		}
		if st := s.Status(); time.Since(st.ArchivedThrough) > 11*time.Second || st.LastError != "" {
			t.Errorf("status %+v", st)
		}
	})
}

// Large amounts of new entries are uploaded only once, as segments. The new entries in memory stay below their limit.
func TestLargeNewsAreUploadedOnce(t *testing.T) {
	inScene(t, 1, smallLimits, func(s *scene) {
		t := s.t
		var most int64
		s.view.change(func(v *view) { v.hook = func(string, string) { most = max(most, s.pending) } })
		g := s.model.one(0)
		time.Sleep(time.Minute)
		before := s.size()
		written := 0
		for range 30 {
			for range 40 {
				written += 80 + len(s.model.write(g, 400).Data)
			}
			time.Sleep(10 * time.Second)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if uploaded := s.size() - before; float64(uploaded) > 1.4*float64(written) { // headers may add 40 %
			t.Errorf("%d bytes were uploaded for %d", uploaded, written)
		}
		if most > smallLimits.pendingBytes || most < smallLimits.atOnceBytes {
			t.Errorf("%d bytes of news were in memory, allowed are %d", most, smallLimits.pendingBytes)
		}
		s.current()
	})
}

// size returns the total size of all segments and log objects, without their headers.
func (s *scene) size() (sum int) {
	for _, name := range s.memory.names("") {
		if b, _ := s.memory.get(name); strings.Contains(name, "/seg/") || strings.Contains(name, "/log/") {
			e, err := object.DecodeEnvelope(b)
			if err != nil {
				s.t.Fatal(err)
			}
			sum += int(e.ContentBytes - e.HeaderBytes)
		}
	}
	return sum
}

func TestHoles(t *testing.T) {
	inScene(t, 2, smallLimits, func(s *scene) {
		t := s.t
		time.Sleep(time.Minute)
		synctest.Wait()
		full, unknown := s.model.one(0), s.model.one(1)
		marked := full.hold
		for range 60 {
			s.model.write(full, 10)
			s.model.write(unknown, 10)
		}
		s.model.compact(full, true)
		s.model.mu.Lock()
		unknown.known = false
		s.model.mu.Unlock()
		floor := full.floor
		time.Sleep(7 * time.Minute)
		for range 60 {
			s.model.write(unknown, 10)
		}
		time.Sleep(8 * time.Minute)
		synctest.Wait()
		a := s.current()
		if h := a.groups[full.id].holes; len(h) != 1 || h[0] != (object.Hole{From: marked + 1, To: floor}) {
			t.Errorf("the disk was full from %d to %d: holes %v", marked, floor, h)
		}
		if h := a.groups[unknown.id].holes; len(h) != 1 || h[0].To != unknown.applied() || h[0].From > 2<<32+2 {
			t.Errorf("nothing is known up to %d: holes %v", unknown.applied(), h)
		}
		if _, err := s.recordsAsOf(full, marked); err != nil {
			t.Errorf("as of %d, up to which the group was archived before: %v", marked, err)
		}
		if n := s.Status().Holes; n != 2 {
			t.Errorf("%d holes in the status", n)
		}
	})
}

// Somebody deletes or damages an object. The archiver reports the loss and requests the lost entries from the store
// again, and soon no reader needs the object any more.
func TestAnObjectIsLost(t *testing.T) {
	remove := func(m *memory, name string) { delete(m.objects, name) }
	damage := func(m *memory, prefix string) {
		for name, b := range m.objects {
			if strings.HasPrefix(name, prefix) {
				m.objects[name] = flip(b, len(b)-1)
			}
		}
	}
	for name, c := range map[string]struct {
		lose func(m *memory, name string)
		name func(s *scene) string
	}{
		"a log object is deleted": {remove, func(s *scene) string { return object.LogName(s.chain.number.Load() - 1) }},
		"a log object is damaged": {damage, func(s *scene) string { return object.LogName(s.chain.number.Load() - 1) }},
		"the last one is damaged": {damage, func(s *scene) string { return object.LogName(s.chain.number.Load()) }},
		"all catalogues of a group are damaged": {damage, func(s *scene) string {
			return object.CataloguePrefix(s.model.one(1).id)
		}},
		"the second catalogue is damaged": {damage, func(s *scene) string {
			return object.CatalogueName(s.model.one(0).id, 2)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inScene(t, 2, smallLimits, func(s *scene) {
				t := s.t
				s.model.onAsked(nil) // do not check the positions, because the archive is incomplete at first
				time.Sleep(30 * time.Second)
				synctest.Wait()
				for g := s.groups[s.model.one(0).id]; g.number < 2 || len(g.loose) < 3; synctest.Wait() {
					s.model.write(s.model.one(0), 10)
					time.Sleep(10 * time.Second)
				}
				lost := c.name(s)
				if err := s.end(); err != nil {
					t.Fatal(err)
				}
				s.memory.mu.Lock()
				c.lose(s.memory, s.model.store.String()+"/"+lost)
				s.memory.mu.Unlock()
				errs := int64(0)
				for range 3 { // the archiver may end with a TakenOverError, and must then be started again
					s.restart(smallLimits)
					s.model.write(s.model.one(0), 10)
					s.model.write(s.model.one(1), 10)
					time.Sleep(time.Minute)
					synctest.Wait()
					errs += s.Status().Errors[ReasonGap]
					if err, ended := s.hasEnded(); !ended {
						break
					} else if other := (*TakenOverError)(nil); !errors.As(err, &other) {
						t.Fatal(err)
					}
				}
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if st := s.Status(); errs == 0 || st.Groups != 2 || time.Since(st.ArchivedThrough) > 11*time.Second {
					t.Errorf("status %+v, %d errors", st, errs)
				}
				for _, g := range s.groups { // a reader that starts from the catalogues finds everything
					all := &archive{memory: s.memory, store: s.model.store, groups: make(map[uuid.UUID]*readable)}
					if err := all.catalogue(g.id, g.number); err != nil {
						t.Fatal(err)
					}
					if err := s.model.groups[g.id].compare(all.groups[g.id], g.marked); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// An archiver reports entries to the leaders as archived only after the bucket has confirmed the creation of the
// object that holds them.
func TestMarksWaitForTheAnswer(t *testing.T) {
	inScene(t, 1, standardLimits, func(s *scene) {
		t := s.t
		time.Sleep(30 * time.Second)
		synctest.Wait()
		g := s.groups[s.model.one(0).id]
		var during uint64
		s.view.change(func(v *view) {
			v.hook = func(op, name string) {
				if op == "create" && strings.Contains(name, "log/") {
					during = g.marked
				}
			}
		})
		before := g.marked
		s.model.write(s.model.one(0), 10)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if during != before || g.marked <= before {
			t.Errorf("the mark was %d before, %d during and %d after the creation", before, during, g.marked)
		}
	})
}

// An archiver is paused while its successor archives everything, and the store then compacts it. When the paused
// archiver continues, the compacted entries seem to be missing from the store. It must not record a hole for them,
// because the archive already has them.
func TestAPausedArchiverNotesNoHole(t *testing.T) {
	inScene(t, 1, smallLimits, func(s *scene) {
		t := s.t
		g := s.model.one(0)
		s.model.steady = true // otherwise a jump of the index could require a log object before the segment
		time.Sleep(30 * time.Second)
		for range 40 { // too few entries to need a catalogue; creating one would stop the paused archiver in any case
			s.model.write(g, 10)
		}
		first := s.process
		source := &pausing{Source: s.model, blocked: make(chan struct{})}
		first.stop()
		<-first.ended
		s.process = begin(s.model, s.view, smallLimits, func(o *Options) { o.Source = source })
		time.Sleep(time.Minute) // by then, the archiver knows how far each group is archived, and waits for the store
		paused := s.process
		s.restart(smallLimits)
		time.Sleep(time.Minute)
		s.model.compact(g, false)
		for range 40 {
			s.model.write(g, 400)
		}
		close(source.blocked)
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		var other *TakenOverError
		if err := paused.end(); !errors.As(err, &other) {
			t.Errorf("the paused archiver ended by %v", err)
		}
		if err, ended := s.hasEnded(); ended {
			t.Errorf("the second archiver ended by %v", err)
		}
		if r := s.current().groups[g.id]; len(r.holes) > 0 || source.floor <= source.position {
			t.Errorf("holes %v; the paused archiver asked from %d, the floor was %d", r.holes, source.position, source.floor)
		}
	})
}

// pausing is a store that responds late.
type pausing struct {
	Source
	blocked         chan struct{}
	position, floor uint64 // position and floor when new entries were first returned
}

func (p *pausing) Round(ctx context.Context, positions map[uuid.UUID]uint64) iter.Seq2[News, error] {
	<-p.blocked
	return func(yield func(News, error) bool) {
		var all []format.Entry
		for n, err := range p.Source.Round(ctx, positions) {
			if all = append(all, n.Entries...); n.More {
				continue // all new entries come at once, so they become a segment
			}
			if n.Entries, all = all, nil; p.floor == 0 {
				p.position, p.floor = positions[n.Group], n.Floor
			}
			if !yield(n, err) {
				return
			}
		}
	}
}

// If a listing is out of date, an archiver must not conclude that its predecessor's objects belong to a different,
// concurrent archiver.
func TestAStaleListHidesNothing(t *testing.T) {
	inScene(t, 2, smallLimits, func(s *scene) {
		t := s.t
		for range 20 {
			s.model.write(s.model.one(0), 2000)
			s.model.write(s.model.one(0), 2000)
			s.model.write(s.model.one(0), 2000)
			time.Sleep(10 * time.Second)
		}
		if err := s.end(); err != nil {
			t.Fatal(err)
		}
		s.view = newView(s.memory, 1, 1)
		s.view.only = faultStale
		s.process = begin(s.model, s.view, smallLimits)
		s.model.write(s.model.one(0), 6000)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if err, ended := s.hasEnded(); ended || s.view.fired[faultStale] == 0 {
			t.Errorf("the archiver ended by %v", err)
		}
		if st := s.Status(); st.Errors[ReasonGap] != 0 {
			t.Errorf("%d gaps, the last error is %q", st.Errors[ReasonGap], st.LastError)
		}
		s.current()
	})
}

// A replica may have a long tail of entries that a new leader has replaced. These entries are void, even if they are
// already in segment objects when the new leader's first entry is read.
func TestAFirstCopyHasNoVoidEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(1, 1)
		g := m.one(0)
		for at := uint64(1); at <= 420; at++ {
			g.all = append(g.all, format.Entry{
				Kind: format.KindPut, ID: int64(at % 6), Index: at, Term: 2, CommitTime: int64(at), Data: make([]byte, 100),
			})
		}
		entries := slices.Clone(g.all[:150])
		for at := uint64(151); at <= 400; at++ {
			entries = append(entries, format.Entry{Kind: format.KindEmpty, Index: at, Term: 1})
		}
		s := format.ManifestSegment{Number: 1, ID: format.NewSegmentID(), FirstIndex: 1, LastIndex: 420}
		file := format.SegmentHeader{Store: m.store, Group: g.id, ID: s.ID, FirstIndex: 1}.Encode()
		for _, e := range append(entries, g.all[150:]...) {
			file = format.AppendFrame(file, s.ID, int64(len(file)), &e)
		}
		s.Bytes = int64(len(file))
		manifest, err := (&format.Manifest{
			Identity: format.Identity{Store: m.store, Group: g.id, Name: g.name}, Sequence: 1, NextSegment: 2,
			Segments: []format.ManifestSegment{s},
		}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		files := &modelCopy{
			model: m, d: CopyDescription{Manifest: manifest, Index: 420, FloorKnown: true},
			files: map[string][]byte{format.SegmentName(1): file},
		}
		v := newView(newMemory(), 1, 0)
		p := begin(m, v, smallLimits, func(o *Options) { o.Source = copied{Source: m, files: files} })
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if err := p.end(); err != nil {
			t.Error(err)
		}
		a, err := m.check(v.memory, map[uuid.UUID]uint64{g.id: 420})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(v.memory.names(m.store.String() + "/g/" + g.id.String() + "/seg")); n <= a.groups[g.id].segments {
			t.Errorf("%d segment objects, %d in the catalogue: no void entry was archived", n, a.groups[g.id].segments)
		}
	})
}

// copied is a store that returns the given files for a first copy of its group.
type copied struct {
	Source
	files GroupCopy
}

func (c copied) Copy(context.Context, uuid.UUID) (GroupCopy, error) { return c.files, nil }
