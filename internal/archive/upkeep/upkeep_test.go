package upkeep

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/base/schedule"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// clocked is a bucket whose objects have times of the test's clock.
type clocked struct {
	*archivetest.Memory
	mu      sync.Mutex
	created map[string]time.Time
	deleted int
	onWrite func(name string) error // called before each Create and Delete
}

func (c *clocked) write(name string) error {
	c.mu.Lock()
	f := c.onWrite
	c.mu.Unlock()
	if f != nil {
		return f(name)
	}
	return nil
}

func (c *clocked) on(write func(name string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onWrite = write
}

func (c *clocked) Create(ctx context.Context, name string, size int64, content io.Reader) error {
	if err := c.write(name); err != nil {
		return err
	}
	if err := c.Memory.Create(ctx, name, size, content); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.created[name] = time.Now()
	return nil
}

func (c *clocked) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		for info, err := range c.Memory.List(ctx, prefix, after) {
			c.mu.Lock()
			info.Created = c.created[info.Name]
			c.mu.Unlock()
			if !yield(info, err) {
				return
			}
		}
	}
}

func (c *clocked) Delete(ctx context.Context, name string) error {
	if err := c.write(name); err != nil {
		return err
	}
	c.mu.Lock()
	c.deleted++
	c.mu.Unlock()
	return c.Memory.Delete(ctx, name)
}

// scene is an archive in virtual time, in which one group is written every hour, and an Upkeep of it.
type scene struct {
	*testing.T
	bucket  *clocked
	writing sync.Mutex // guards the writer and the group
	writer  *archivetest.Writer
	group   *archivetest.Group
	archive *prune.Store
	upkeep  *Upkeep
	opts    Options
	owns    owner // what the owner says
	covers  owner // what the archiver says about Cover; if it is nil, Cover archives the group
	stop    func()
}

// owner is the answer to whether the process owns the archive. It is safe for concurrent use.
type owner struct {
	mu  sync.Mutex
	err error
}

func (o *owner) get() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func (o *owner) set(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

func inScene(t *testing.T, opts Options, play func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(archivetest.Begin))
		opts.Log = slog.New(slog.DiscardHandler)
		s := &scene{T: t, bucket: &clocked{Memory: archivetest.NewMemory(), created: map[string]time.Time{}}, opts: opts}
		s.writer = archivetest.New(t, s.bucket, archivetest.SampleStore, object.Key{})
		s.group = s.writer.NewGroup("alpha", 1)
		s.group.Put(1, "data")
		s.writer.Copy(s.group, 4)
		s.archive = &prune.Store{Bucket: s.bucket, UUID: archivetest.SampleStore}
		s.stop = func() {}
		play(s)
		s.stop()
	})
}

// start starts a process that runs an Upkeep, and ends the one before.
func (s *scene) start() {
	s.stop()
	s.upkeep = New(s.opts)
	s.run()
}

// log writes the group, and creates a log object.
func (s *scene) log() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.writer.Wait(int64(time.Since(s.writer.Now()) / time.Second))
	s.group.Put(1, "data")
	s.writer.Log(s.group)
}

// archiver implements Archiver.
type archiver struct{ s *scene }

func (a archiver) Owns(context.Context) error { return a.s.owns.get() }

func (a archiver) Cover(context.Context) error {
	if err := a.s.covers.get(); err != nil {
		return err
	}
	a.s.log()
	return nil
}

// run starts the next archiver of the process.
func (s *scene) run() {
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan struct{})
	u := s.upkeep
	go func() {
		defer close(ended)
		u.Run(ctx, s.archive, archiver{s})
	}()
	s.stop = func() {
		cancel()
		<-ended
	}
	synctest.Wait()
}

// pass lets the archiver work for some time.
func (s *scene) pass(d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until); {
		time.Sleep(min(time.Hour, time.Until(until)))
		s.log()
		synctest.Wait()
	}
}

// points returns the names of the points that count.
func (s *scene) points() (names []string) {
	s.Helper()
	points, err := s.archive.Points(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range points {
		if !p.Dropped {
			names = append(names, p.Name)
		}
	}
	return names
}

func (s *scene) want(what string, names ...string) {
	s.Helper()
	if got := s.points(); !slices.Equal(got, names) {
		s.Errorf("%s: points %q, want %q", what, got, names)
	}
}

func daily(t *testing.T) *schedule.Schedule {
	s, err := schedule.Parse("0 3 * * *")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const day = 24 * time.Hour

// The archive begins on November 1 at 12:00. A process that was down makes the point that it missed at once, and only
// one. A process that starts again makes no further point.
func TestPointsFollowTheSchedule(t *testing.T) {
	inScene(t, Options{Schedule: daily(t)}, func(s *scene) {
		s.start()
		s.pass(14*time.Hour + 59*time.Minute)
		s.want("before 3:00")
		if st := s.upkeep.Status(); !st.Known || st.Points != 0 || !st.NextPoint.Equal(archivetest.Begin.Add(15*time.Hour)) {
			s.Errorf("%+v", st)
		}
		s.pass(2 * day)
		s.want("two days", "auto-20261102-030000", "auto-20261103-030000")
		s.stop()
		s.run()
		s.start()
		s.pass(time.Hour)
		all := []string{"auto-20261102-030000", "auto-20261103-030000", "auto-20261104-030000"}
		s.want("restarts", all...)
		s.stop()
		s.pass(5*day + 6*time.Hour)
		s.start()
		all = append(all, "auto-20261109-095900")
		s.want("five days later", all...)
		s.pass(day)
		all = append(all, "auto-20261110-030000")
		s.want("one day after that", all...)
		st := s.upkeep.Status()
		if st.Points != 5 || st.NewestPoint != all[4] || time.Since(st.NewestTime) > 8*time.Hour || len(st.Errors) != 0 ||
			time.Until(st.NextPoint) > day || !st.LastPrune.IsZero() || st.Deleted != 0 {
			s.Errorf("%+v", st)
		}
	})
}

// Pruning keeps the newest points of the schedule, and all that were made by hand. What it lists, the next prune
// deletes.
func TestTheArchiveIsPruned(t *testing.T) {
	inScene(t, Options{Schedule: daily(t), Prune: true, Window: day, Points: 2}, func(s *scene) {
		if _, err := s.archive.CreatePoint(s.Context(), prune.PointSpec{Name: "mine", Made: object.MadeByHand,
			Time: time.Now()}, time.Now()); err != nil {
			s.Fatal(err)
		}
		s.start()
		s.pass(10 * time.Minute)
		if st := s.upkeep.Status(); !st.LastPrune.IsZero() {
			s.Errorf("it pruned at once: %+v", st)
		}
		s.pass(5 * day)
		s.writer.Roll(s.group)
		s.pass(3 * day)
		st := s.upkeep.Status()
		if time.Since(st.LastPrune) > 2*day || st.Deleted == 0 || int64(s.bucket.deleted) < st.Deleted ||
			st.DeletedBytes == 0 || len(st.Errors) != 0 || st.Points != len(s.points()) {
			s.Errorf("%+v, %d deleted", st, s.bucket.deleted)
		}
		// A point is made after the last prune, so there may be one more than are kept.
		if got := s.points(); len(got) < 3 || len(got) > 4 || got[0] != "mine" || got[len(got)-1] != "auto-20261109-030000" {
			s.Errorf("points %q", got)
		}
		err := s.archive.Use(s.Context(), "a test", func(string) {}, func(context.Context) error {
			s.pass(2 * day)
			return nil
		})
		if st := s.upkeep.Status(); err != nil || !strings.Contains(st.Waits, "a test") || st.PruneError != "" {
			s.Errorf("%v, %+v", err, st)
		}
		s.pass(day)
		if st := s.upkeep.Status(); st.Waits != "" || time.Since(st.LastPrune) > day {
			s.Errorf("%+v", st)
		}
	})
}

// A process that does not own the archive any more neither makes points nor prunes, not even if it was in the middle of
// a prune when another one took over.
func TestOnlyTheOwnerChangesTheArchive(t *testing.T) {
	inScene(t, Options{Schedule: daily(t), Prune: true, Window: day, Points: 1}, func(s *scene) {
		s.start()
		s.pass(4 * day)
		other := errors.New("another archiver has taken over")
		var mu sync.Mutex // guards foreign
		var foreign []string
		s.bucket.on(func(name string) error {
			switch {
			case strings.Contains(name, "/log/"):
			case s.owns.get() != nil:
				mu.Lock()
				defer mu.Unlock()
				foreign = append(foreign, name)
			case strings.Contains(name, "/drop/"):
				s.owns.set(other)
				time.Sleep(time.Hour) // the process is paused
			}
			return nil
		})
		s.pass(4 * day)
		mu.Lock()
		if s.owns.get() == nil || len(foreign) > 0 {
			s.Errorf("%v, it changed %q", s.owns.get(), foreign)
		}
		mu.Unlock()
		before := s.points()
		st := s.upkeep.Status()
		if !strings.Contains(st.PointError, other.Error()) || !strings.Contains(st.PruneError, other.Error()) ||
			st.Errors[JobPoint] == 0 || st.Errors[JobPrune] == 0 || st.PointErrorAt.IsZero() || st.PruneErrorAt.IsZero() {
			s.Errorf("%+v", st)
		}
		s.bucket.on(nil)
		s.owns.set(nil)
		s.pass(2 * time.Hour)
		st = s.upkeep.Status()
		if st.PointError != "" || st.PruneError != "" || len(s.points()) == 0 || slices.Equal(s.points(), before) {
			s.Errorf("%+v, points %q", st, s.points())
		}
	})
}

// A wanted point would lack what was just acknowledged, as long as a group does not answer. So it is made later.
func TestAWantedPointWaitsForEachGroup(t *testing.T) {
	wanted := func() (*Wanted, error) { return &Wanted{Points: []WantedPoint{{Name: "a"}}}, nil }
	inScene(t, Options{Wanted: wanted}, func(s *scene) {
		s.covers.set(errors.New("group x does not answer"))
		s.start()
		s.pass(20 * time.Minute)
		s.want("a group does not answer")
		if st := s.upkeep.Status(); st.Named["a"].Error != "point a: group x does not answer" {
			s.Errorf("%+v", st)
		}
		s.covers.set(nil)
		s.pass(20 * time.Minute)
		s.want("it answers", "a")
	})
}

// Points that others want are made and dropped once, with the facts of that moment. A point that is not wanted any more
// stays. If one of them fails, the others are made, and it is tried again.
func TestWantedPoints(t *testing.T) {
	var mu sync.Mutex
	w, failed := &Wanted{}, error(nil)
	want := func(next Wanted, err error) {
		mu.Lock()
		defer mu.Unlock()
		w, failed = &next, err
	}
	inScene(t, Options{Schedule: daily(t), Wanted: func() (*Wanted, error) {
		mu.Lock()
		defer mu.Unlock()
		return w, failed
	}}, func(s *scene) {
		s.start()
		s.pass(time.Hour)
		until, wanted := time.Now().Add(90*day), time.Now()
		facts := []object.Fact{{Name: "RecordStore/quotes", YAML: "kind: RecordStore\n"}}
		want(Wanted{Facts: facts, Points: []WantedPoint{{Name: "a", Until: until}, {Name: "b"}}}, nil)
		s.pass(time.Minute)
		s.want("wanted", "a", "b")
		points, err := s.archive.Points(s.Context())
		if err != nil || points[0].Time < wanted.UnixNano() || points[0].Until != until.UnixNano() ||
			points[0].Made != object.MadeByHand ||
			!slices.Equal(points[0].Facts, facts) {
			s.Errorf("%v, %+v", err, points)
		}
		st := s.upkeep.Status()
		if is := st.Named["a"]; is.Time.IsZero() || is.Dropped || is.Error != "" || st.Points != 2 || len(st.Named) != 2 {
			s.Errorf("%+v", st)
		}
		want(Wanted{Points: []WantedPoint{{Name: "a", Drop: true}, {Name: "none", Drop: true}}}, nil)
		s.pass(time.Minute)
		s.want("b is kept, although nobody names it", "b")
		st = s.upkeep.Status()
		if !st.Named["a"].Dropped || !st.Named["none"].Dropped || len(st.Named) != 2 || st.Points != 1 {
			s.Errorf("%+v", st)
		}
		s.bucket.on(func(name string) error {
			if strings.HasSuffix(name, "/c") {
				return errors.New("503 slow down")
			}
			return nil
		})
		want(Wanted{Facts: facts, Points: []WantedPoint{{Name: "a"}, {Name: "c"}, {Name: "d"}}}, nil)
		s.pass(time.Minute)
		s.want("c fails", "b", "d")
		st = s.upkeep.Status()
		if !strings.Contains(st.Named["a"].Error, "choose another name") || !strings.Contains(st.Named["c"].Error, "503") ||
			st.Named["d"].Error != "" || st.WantedError == "" || st.Errors[JobNamed] == 0 || st.PointError != "" {
			s.Errorf("%+v", st)
		}
		s.bucket.on(nil)
		want(Wanted{Facts: facts, Points: []WantedPoint{{Name: "c"}, {Name: "d"}}}, nil)
		s.pass(20 * time.Minute)
		if st = s.upkeep.Status(); st.Named["c"].Time.IsZero() || st.Named["c"].Error != "" || st.WantedError != "" {
			s.Errorf("%+v", st)
		}
		want(Wanted{}, errors.New("no such volume"))
		s.pass(15 * time.Hour)
		if st = s.upkeep.Status(); st.WantedError != "no such volume" || st.Points != 4 || st.NewestPoint[:5] != "auto-" {
			s.Errorf("%+v", st)
		}
		points, err = s.archive.Points(s.Context())
		if err != nil || !slices.Equal(points[3].Facts, facts) {
			s.Errorf("a point of the schedule has no facts: %v, %+v", err, points[3])
		}
	})
}

// While the bucket fails, the point is tried again, less and less often. Then there is one point.
func TestAPointIsTriedAgain(t *testing.T) {
	inScene(t, Options{Schedule: daily(t)}, func(s *scene) {
		s.start()
		tries := 0
		s.bucket.on(func(name string) error {
			if strings.Contains(name, "/points/") {
				tries++
				return errors.New("503 slow down")
			}
			return nil
		})
		s.pass(15*time.Hour + 12*time.Hour)
		st := s.upkeep.Status()
		if !strings.Contains(st.PointError, "503") || st.Errors[JobPoint] < 10 || st.Errors[JobPoint] > 40 ||
			tries != 3*int(st.Errors[JobPoint]) {
			s.Errorf("%d tries, %+v", tries, st)
		}
		s.bucket.on(nil)
		s.pass(2 * time.Hour)
		if st := s.upkeep.Status(); len(s.points()) != 1 || st.PointError != "" || st.Points != 1 {
			s.Errorf("%q, %+v", s.points(), st)
		}
	})
}
