package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// equalGroups writes an archive of groups of the same size, each in one segment, and returns their UUIDs in newStore.
func equalGroups(t *testing.T, b *archivetest.Memory, groups int) (w *archivetest.Writer, ids []uuid.UUID) {
	w = archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	for n := range groups {
		g := w.NewGroup(fmt.Sprint("group-", n), byte(n+1))
		for i := range int64(50) {
			g.Put(i%40, strings.Repeat("d", 1000))
		}
		w.Copy(g, 50)
		ids = append(ids, GroupUUID(newStore, g.UUID))
	}
	return w, ids
}

// ofSize returns a restore with memory for some of the given groups.
func ofSize(t *testing.T, b *archivetest.Memory, w *archivetest.Writer, group uuid.UUID, groups int64) *Restore {
	r, err := NewUpTo(t.Context(), open(t, b, w), newStore, w.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.room = groups * needOf(r.groups[r.byID[group]].from.Bytes(100), roomBytes).bytes
	r.images = newImages(r.room)
	return r
}

// As many groups are read at the same time as there is memory for.
func TestGroupsAreReadAtTheSameTime(t *testing.T) {
	for parallel := range int64(4) {
		synctest.Test(t, func(t *testing.T) {
			const groups, latency = 7, 100 * time.Millisecond
			parallel := parallel + 1
			b := archivetest.NewMemory()
			w, ids := equalGroups(t, b, groups)
			r := ofSize(t, b, w, ids[0], parallel)
			b.OnOpen = func(_ string, _ int, content []byte) (io.Reader, error) {
				time.Sleep(latency)
				return bytes.NewReader(content), nil
			}
			began := time.Now()
			var images sync.WaitGroup
			for _, id := range ids {
				images.Go(func() {
					i, err := r.Image(t.Context(), id, founder)
					if err != nil {
						t.Error(err)
						return
					}
					if err := read(t.Context(), i); err != nil {
						t.Error(err)
					}
					_ = i.Close()
				})
			}
			images.Wait()
			want := latency * time.Duration((groups+parallel-1)/parallel)
			if took := time.Since(began); took != want {
				t.Errorf("%d at a time: %d groups took %v, not %v", parallel, groups, took, want)
			}
			if got := r.room - r.images.room; got > r.room || r.images.room < 0 || r.images.large {
				t.Errorf("%d bytes of %d are reserved", got, r.room)
			}
		})
	}
}

// read reads all files of an image.
func read(ctx context.Context, i *Image) error {
	for _, f := range i.Files() {
		src, err := i.Open(ctx, f.Name, 0)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, src)
		if err := errors.Join(err, src.Close()); err != nil {
			return err
		}
	}
	return nil
}

// A group that is kept in memory is read from the bucket once, and its files are those of a group that is not kept. If
// the memory does not suffice, the group is read again.
func TestGroupIsReadOnce(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	a := open(t, b, w)
	files := func(i *Image) (all [][]byte) {
		for _, f := range i.Files() {
			for _, offset := range []int64{0, f.Bytes / 2} {
				src, err := i.Open(t.Context(), f.Name, offset)
				if err != nil {
					t.Fatal(err)
				}
				content, err := io.ReadAll(src)
				if err := errors.Join(err, src.Close()); err != nil {
					t.Fatal(err)
				}
				all = append(all, content)
			}
		}
		return all
	}
	keptGroups, again := 0, 0
	for _, model := range w.Groups {
		plain, err := imageOf(t.Context(), a, model.UUID, model.Through(), tiny)
		if err != nil {
			continue // the group was deleted
		}
		want := files(plain)
		for _, bytes := range []int64{1 << 20, 1, 300} {
			l := tiny
			l.keptBytes = bytes
			i, err := imageOf(t.Context(), a, model.UUID, model.Through(), l)
			if err != nil {
				t.Fatal(err)
			}
			b.Opens()
			got := files(i)
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%s, %d bytes are kept: other files", model.Name, bytes)
			}
			opens, blobs := b.Opens(), 2*len(i.plan.names)
			switch {
			case i.plan.kept == nil:
				again++
			case bytes < i.plan.kept.bytes:
				t.Errorf("%s: %d bytes are kept, and %d may be", model.Name, i.plan.kept.bytes, bytes)
			default:
				keptGroups++
				if opens != blobs {
					t.Errorf("%s: %d objects were read again, and it has %d blobs", model.Name, opens, blobs/2)
				}
			}
		}
	}
	if keptGroups < 3 || again < 6 {
		t.Errorf("%d groups were kept, %d were read again", keptGroups, again)
	}
}

// Frames are kept in blocks, and may be larger than what is left of a block.
func TestKeptFramesSpanBlocks(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	g := w.NewGroup("large", 1)
	for i := range int64(7) {
		g.Put(i, strings.Repeat(fmt.Sprint(i), 700<<10))
	}
	w.Copy(g, 3)
	l := defaultLimits
	l.keptBytes = 8 << 20
	i, err := imageOf(t.Context(), open(t, b, w), g.UUID, g.Through(), l)
	if err == nil {
		err = check(t.Context(), i, g, g.Through())
	}
	if err != nil {
		t.Error(err)
	}
	if k := i.plan.kept; k == nil || len(k.blocks) != 5 || len(k.rows) != 7 {
		t.Errorf("kept %+v", k)
	}
}

// admission is a request to images that a test has made.
type admission struct {
	group uuid.UUID
	need  need
	plan  *plan
	err   error
	over  chan struct{}
}

func ask(ctx context.Context, i *images, group byte, n need) *admission {
	a := &admission{group: uuid.UUID{group}, need: n, over: make(chan struct{})}
	go func() {
		defer close(a.over)
		a.plan, a.err = i.begin(ctx, a.group, n, patience)
	}()
	synctest.Wait()
	return a
}

// admitted reports whether the request was admitted by now.
func (a *admission) admitted() bool {
	synctest.Wait()
	select {
	case <-a.over:
		return a.err == nil
	default:
		return false
	}
}

// keepPlan ends an image, and leaves its plan.
func (a *admission) keepPlan(i *images) *plan {
	p := &plan{need: a.need}
	p.identity.Group = a.group
	i.end(a.group, a.need, p)
	return p
}

// Requests are admitted in their order, as far as there is memory, and one large group at a time.
func TestImagesAreAdmittedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, i := t.Context(), newImages(100)
		small, large := need{bytes: 40}, need{bytes: 10, large: true}
		a, b := ask(ctx, i, 1, small), ask(ctx, i, 2, small)
		same := ask(ctx, i, 1, small)        // waits for a, and holds up none
		c := ask(ctx, i, 3, large)           // fits
		d := ask(ctx, i, 4, large)           // waits for c, and holds up only large groups
		e := ask(ctx, i, 5, need{bytes: 10}) // fits
		f := ask(ctx, i, 6, small)           // lacks memory
		g := ask(ctx, i, 7, need{bytes: 0})  // would fit, but waits behind f
		got := []bool{}
		for _, q := range []*admission{a, b, same, c, d, e, f, g} {
			got = append(got, q.admitted())
		}
		if want := []bool{true, true, false, true, false, true, false, false}; !slices.Equal(got, want) {
			t.Fatalf("admitted %v, not %v", got, want)
		}
		plan := a.keepPlan(i)
		if !same.admitted() || same.plan != plan || f.admitted() {
			t.Fatalf("the same group: %+v, a group that lacks memory: %+v", same, f)
		}
		second := same.keepPlan(i) // is dropped, because f needs its memory
		if second == nil || !f.admitted() || !g.admitted() || d.admitted() || len(i.idle) != 0 {
			t.Fatal("a plan without an image keeps its memory")
		}
		c.keepPlan(i)
		if !d.admitted() || len(i.idle) != 0 || !i.large {
			t.Fatal("a large group waits for the plan of another one")
		}
		for _, q := range []*admission{b, d, e, f, g} {
			i.end(q.group, q.need, nil)
		}
		if i.room != 100 || i.large || len(i.open) > 0 || len(i.waiting) > 0 {
			t.Errorf("at the end: %+v", i)
		}
	})
}

// A request that was not admitted within the time, or whose context has ended, holds up no other.
func TestImageIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newImages(100)
		a := ask(t.Context(), i, 1, need{bytes: 60})
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		b, c := ask(t.Context(), i, 2, need{bytes: 60}), ask(ctx, i, 3, need{bytes: 60})
		cancel()
		<-c.over
		if !errors.Is(c.err, context.Canceled) || time.Since(began) != 0 {
			t.Errorf("after the context ended: %v, after %v", c.err, time.Since(began))
		}
		time.Sleep(patience / 2)
		d := ask(t.Context(), i, 4, need{bytes: 40})
		if d.admitted() {
			t.Error("a request overtakes the one before it")
		}
		<-b.over
		if !errors.Is(b.err, ErrBusy) || time.Since(began) != patience || !d.admitted() {
			t.Errorf("error %v after %v; the next one is admitted: %t", b.err, time.Since(began), d.admitted())
		}
		i.end(a.group, a.need, nil)
		i.end(d.group, d.need, nil)
		if i.room != 100 {
			t.Errorf("at the end: %+v", i)
		}
	})
}

// A group of more than some 60 MB is read twice. The memory that is reserved never exceeds the bound.
func TestNeedOfGroups(t *testing.T) {
	for archived, large := range map[int64]bool{0: false, 1 << 20: false, 60 << 20: false, 62 << 20: true, 1 << 40: true} {
		n := needOf(archived, roomBytes)
		if n.large != large || n.bytes > roomBytes || n.large != (n.keep() == 0 && archived > 0) ||
			!large && n.keep() < archived {
			t.Errorf("%d bytes: %+v", archived, n)
		}
	}
}

// If an object cannot be read, the group fails, and the others are restored meanwhile.
func TestAGroupThatFailsDoesNotConcernOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := archivetest.NewMemory()
		w, ids := equalGroups(t, b, 4)
		r := ofSize(t, b, w, ids[0], 2)
		broken := w.Groups[1].UUID.String()
		b.OnOpen = func(name string, _ int, content []byte) (io.Reader, error) {
			time.Sleep(time.Second)
			if strings.Contains(name, broken) {
				content = bytes.Clone(content)
				content[len(content)/2] ^= 1
			}
			return bytes.NewReader(content), nil
		}
		var images sync.WaitGroup
		errs := make([]error, len(ids))
		for n, id := range ids {
			images.Go(func() {
				i, err := r.Image(t.Context(), id, founder)
				if errs[n] = err; err == nil {
					errs[n] = errors.Join(check(t.Context(), i, w.Groups[n], w.Groups[n].Through()), i.Close())
				}
			})
		}
		images.Wait()
		for n, err := range errs {
			if (n == 1) != reader.IsBroken(err) || n != 1 && err != nil {
				t.Errorf("group %d: %v", n, err)
			}
		}
		if len(r.images.open) > 0 || r.images.room != r.room-int64(len(r.images.idle))*r.room/2 {
			t.Errorf("at the end: %+v", r.images)
		}
	})
}
