package prune

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// guarded is a bucket that can refuse to create or delete objects. Its clock is that of the process.
type guarded struct {
	*archivetest.Memory
	created        sync.Map              // creation times by name
	create, delete atomic.Pointer[error] // errors of Create and Delete; nil if the calls succeed
	listed         func()                // called after the uses were listed, and before they are yielded
}

func (g *guarded) Create(ctx context.Context, name string, size int64, content io.Reader) error {
	if err := g.create.Load(); err != nil {
		return *err
	}
	g.created.Store(name, time.Now())
	return g.Memory.Create(ctx, name, size, content)
}

func (g *guarded) Delete(ctx context.Context, name string) error {
	if err := g.delete.Load(); err != nil {
		return *err
	}
	return g.Memory.Delete(ctx, name)
}

func (g *guarded) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	var infos []bucket.Info
	for info := range g.Memory.List(ctx, prefix, after) {
		if created, ok := g.created.Load(info.Name); ok {
			info.Created, _ = created.(time.Time)
		}
		infos = append(infos, info)
	}
	if g.listed != nil && strings.HasSuffix(prefix, object.UsePrefix) {
		g.listed()
	}
	return func(yield func(bucket.Info, error) bool) {
		for _, info := range infos {
			if !yield(info, nil) {
				return
			}
		}
	}
}

// newGuarded returns an archive whose bucket can refuse uses.
func newGuarded(t *testing.T) (*guarded, *Store) {
	g := &guarded{Memory: archivetest.NewMemory()}
	archivetest.Sample(t, g.Memory, object.Key{}, 50)
	return g, &Store{Bucket: g, UUID: archivetest.SampleStore}
}

// user returns a description of who uses the archive now, or "" if nobody does.
func user(t *testing.T, s *Store) string {
	t.Helper()
	if b, ok := s.Bucket.(*guarded); ok {
		b.created.Store(s.UUID.String()+"/"+object.ArchiveName, time.Now()) // the bucket's clock goes on
	}
	a, err := s.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	who, _, err := s.inUse(t.Context(), a, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return who
}

func noWarning(t *testing.T) func(string) {
	return func(text string) { t.Errorf("warning: %s", text) }
}

// A reader that runs for two days is protected all the time, and leaves nothing behind.
func TestAUseIsProlongedAndDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newGuarded(t)
		err := s.Use(t.Context(), "a restore", noWarning(t), func(context.Context) error {
			for range 4 * 48 {
				time.Sleep(15*time.Minute + time.Second)
				if who := user(t, s); !strings.Contains(who, "a restore") {
					t.Fatalf("%v: used by %q", time.Now(), who)
				}
				if n := len(names(b.Memory, "/use/")); n > 2 {
					t.Fatalf("%d uses exist", n)
				}
			}
			return errors.New("read")
		})
		if err == nil || err.Error() != "read" || len(names(b.Memory, "/use/")) != 0 {
			t.Errorf("%v, %q", err, names(b.Memory, "/use/"))
		}
	})
}

// A reader that is stopped by its context deletes its use nevertheless.
func TestAStoppedReaderDeletesItsUse(t *testing.T) {
	b, s := newGuarded(t)
	ctx, stop := context.WithCancel(t.Context())
	err := s.Use(ctx, "a restore", noWarning(t), func(ctx context.Context) error {
		stop()
		return context.Cause(ctx)
	})
	if !errors.Is(err, context.Canceled) || len(names(b.Memory, "/use/")) != 0 {
		t.Errorf("%v, %q", err, names(b.Memory, "/use/"))
	}
}

// What a reader leaves behind counts for six hours, and then ends by itself.
func TestAUseThatRemainsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newGuarded(t)
		refused := error(syscall.EACCES)
		b.delete.Store(&refused)
		var warned string
		if err := s.Use(t.Context(), "a restore", func(text string) { warned += text }, func(context.Context) error {
			return nil
		}); err != nil || !strings.Contains(warned, "remains, so nothing is pruned until 2000-01-01T06:00:00Z") {
			t.Errorf("%v, %q", err, warned)
		}
		time.Sleep(UseFor)
		if who := user(t, s); !strings.Contains(who, "a restore") {
			t.Errorf("after six hours: %q", who)
		}
		time.Sleep(time.Nanosecond)
		if who := user(t, s); who != "" {
			t.Errorf("after more than six hours: %q", who)
		}
	})
}

// A use has ended when its time has passed by the clock of pruning and by that of the bucket.
func TestAUseEndsByBothClocks(t *testing.T) {
	for _, c := range []struct {
		now, newest time.Duration // since the use was created
		used        bool
	}{
		{time.Hour, 100 * time.Hour, true}, {time.Hour + 1, 59 * time.Minute, true}, {1000 * time.Hour, 0, true},
		{time.Hour + 1, time.Hour, false},
	} {
		a := newAged(t)
		begin := a.w.Now()
		use := &object.Use{Created: begin.UnixNano(), Until: begin.Add(time.Hour).UnixNano(), What: "a restore"}
		name := object.UsePrefix + "11111111-2222-3333-4444-555555555555"
		if _, err := a.store.create(t.Context(), name, use, nil); err != nil {
			t.Fatal(err)
		}
		a.b.now = a.b.now.Add(c.newest)
		if _, err := a.store.create(t.Context(), object.PointPrefix+"x", use, nil); err != nil {
			t.Fatal(err)
		}
		archive, err := a.store.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		who, ended, err := a.store.inUse(t.Context(), archive, begin.Add(c.now))
		if err != nil || (who != "") != c.used || (len(ended) == 0) != c.used {
			t.Errorf("%v, %v: used by %q, ended %q, %v", c.now, c.newest, who, ended, err)
		}
	}
}

// If a use is replaced while pruning lists the uses, pruning still finds that the archive is read.
func TestAUseThatIsReplacedDuringAListing(t *testing.T) {
	b, s := newGuarded(t)
	u := &using{store: s, what: "a restore", warn: noWarning(t)}
	for range 3 {
		if err := u.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b.listed = func() {
		if err := u.renew(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if who := user(t, s); !strings.Contains(who, "a restore") {
		t.Errorf("used by %q", who)
	}
}

// Without a use, nothing is read.
func TestNothingIsReadWithoutAUse(t *testing.T) {
	b, s := newGuarded(t)
	read := func(context.Context) error {
		t.Error("it was read")
		return nil
	}
	refused := error(&fs.PathError{Op: "create", Path: "use", Err: syscall.EROFS})
	b.create.Store(&refused)
	if err := s.Use(t.Context(), "a restore", noWarning(t), read); !errors.Is(err, ErrUnprotected) ||
		bucket.ReasonOf(err) != bucket.Forbidden {
		t.Error(err)
	}
	b.create.Store(nil)
	other := &Store{Bucket: b, UUID: group(9)}
	before := len(b.Names())
	if err := other.Use(t.Context(), "a restore", noWarning(t), read); !errors.Is(err, fs.ErrNotExist) ||
		len(b.Names()) != before {
		t.Errorf("there is no archive: %v", err)
	}
}

// A reader goes on while its bucket cannot be written for some hours. A day after its last use has ended, objects that
// it needs may be deleted, so it ends.
func TestAReaderWhoseUseCannotBeProlonged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newGuarded(t)
		away := error(syscall.ECONNREFUSED)
		warnings := 0
		begin := time.Now()
		err := s.Use(t.Context(), "a restore", func(string) { warnings++ }, func(ctx context.Context) error {
			b.create.Store(&away)
			time.Sleep(20 * time.Hour)
			b.create.Store(nil)
			time.Sleep(useRetry + time.Minute)
			if who := user(t, s); !strings.Contains(who, "a restore") || ctx.Err() != nil || warnings == 0 {
				t.Errorf("after 20 hours: used by %q, %v, %d warnings", who, context.Cause(ctx), warnings)
			}
			b.create.Store(&away)
			begin = time.Now()
			select {
			case <-ctx.Done():
			case <-time.After(30 * 24 * time.Hour):
			}
			return errors.New("the bucket's connection was closed")
		})
		if passed := time.Since(begin); !errors.Is(err, ErrUseEnded) || passed < UseFor+dropWait-useRenew ||
			passed > UseFor+dropWait+useRetry {
			t.Errorf("after %v: %v", passed, err)
		}
	})
}

// A use stops the deletion if it is created after the objects were listed in a drop, and also if it is created after
// pruning has begun.
func TestAUseBetweenThePhasesStopsTheDeletion(t *testing.T) {
	create := func(a *aged) {
		now := a.w.Now()
		a.b.Set(a.w.Name(object.UsePrefix+"11111111-2222-3333-4444-555555555555"), a.w.Encode(&object.Use{
			Created: now.UnixNano(), Until: now.Add(time.Hour).UnixNano(), What: "a restore"}, nil))
	}
	for _, when := range []string{"between the phases", "while the archive is read", "before the drop"} {
		a := newAged(t)
		if when != "before the drop" {
			a.prune(Options{})
			a.pass(25)
		}
		before := len(names(a.b.Memory, "/seg/")) + len(names(a.b.Memory, "/drop/"))
		listings := 0
		a.b.onList = func(prefix string) {
			if strings.HasSuffix(prefix, object.UsePrefix) {
				listings++
			} else if when == "while the archive is read" && listings == 1 || when == "before the drop" && listings == 2 {
				create(a)
			}
		}
		if when == "between the phases" {
			create(a)
		}
		r := a.prune(Options{})
		after := len(names(a.b.Memory, "/seg/")) + len(names(a.b.Memory, "/drop/")) - r.Groups // a base has one segment
		if !strings.Contains(r.InUse, "a restore") || r.Deleted != 0 || after != before {
			t.Errorf("%s: %+v, %d objects before, %d after", when, r, before, after)
		}
	}
}
