package reader_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// latency is the time that the bucket of these tests needs for each request.
const latency = 100 * time.Millisecond

// slowBucket is a bucket with a latency. It counts the requests that wait for their answers, the answers that are open,
// and the bytes that nobody has read of those that were closed.
type slowBucket struct {
	*archivetest.Memory

	mu           sync.Mutex
	asked, most  int
	open         int
	unread       int64
	unreadObject string
}

func (b *slowBucket) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	b.count(&b.asked, 1)
	defer b.count(&b.asked, -1)
	select {
	case <-time.After(latency):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r, err := b.Memory.Open(ctx, name, offset, length)
	if err != nil {
		return nil, err
	}
	b.count(&b.open, 1)
	return &slowAnswer{ReadCloser: r, bucket: b, name: name}, nil
}

func (b *slowBucket) count(n *int, add int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*n += add
	b.most = max(b.most, b.asked)
}

type slowAnswer struct {
	io.ReadCloser
	bucket *slowBucket
	name   string
}

func (a *slowAnswer) Close() error {
	left, err := io.Copy(io.Discard, a.ReadCloser)
	a.bucket.mu.Lock()
	defer a.bucket.mu.Unlock()
	a.bucket.open--
	if left > 0 {
		a.bucket.unread, a.bucket.unreadObject = left, a.name
	}
	return errors.Join(err, a.ReadCloser.Close())
}

// manySegments writes a group with the given number of segments of one put each.
func manySegments(t *testing.T, b *archivetest.Memory, segments int) (*archivetest.Writer, *archivetest.Group) {
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	g := w.NewGroup("many", 1)
	for i := range segments {
		g.Put(int64(i), fmt.Sprint("data ", i))
	}
	w.Copy(g, 1)
	return w, g
}

// While the entries of one object are read, the next ones are opened: of 23 objects, five at a time.
func TestObjectsAreOpenedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBucket{Memory: archivetest.NewMemory()}
		w, model := manySegments(t, b.Memory, 23)
		a, err := reader.Open(t.Context(), b, w.Store, nil)
		if err != nil {
			t.Fatal(err)
		}
		g := group(t, a, model)
		began := time.Now()
		checkEntries(t, g, model, 1, model.Through())
		if took, want := time.Since(began), 5*latency; took != want {
			t.Errorf("23 objects were read within %v, not %v", took, want)
		}
		if b.open != 0 || b.most != 5 || b.unread != 0 {
			t.Errorf("%d answers remain open, %d requests waited at once, %d bytes were not read", b.open, b.most, b.unread)
		}
	})
}

// If the caller wants no more entries, the objects that were opened ahead are closed.
func TestObjectsOpenedAheadAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBucket{Memory: archivetest.NewMemory()}
		w, model := manySegments(t, b.Memory, 23)
		a, err := reader.Open(t.Context(), b, w.Store, nil)
		if err != nil {
			t.Fatal(err)
		}
		g := group(t, a, model)
		for wanted := range 7 {
			n := 0
			for _, err := range g.Entries(t.Context(), 1, model.Through()) {
				if err != nil {
					t.Fatal(err)
				}
				if n++; n > wanted {
					break
				}
			}
			if b.open != 0 {
				t.Fatalf("after %d entries, %d answers remain open", n, b.open)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, err := range g.Entries(ctx, 1, model.Through()) {
			if cancel(); err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		if b.open != 0 {
			t.Fatalf("after the context ended, %d answers remain open", b.open)
		}
	})
}

// The error of an object that was opened ahead is returned when its entries are needed, after those before it.
func TestErrorOfAnObjectOpenedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBucket{Memory: archivetest.NewMemory()}
		w, model := manySegments(t, b.Memory, 9)
		var names []string
		for _, name := range b.Names() {
			if strings.Contains(name, "/seg/") {
				names = append(names, name)
			}
		}
		a, err := reader.Open(t.Context(), b, w.Store, nil)
		if err != nil {
			t.Fatal(err)
		}
		g := group(t, a, model)
		whole := b.Get(names[3])
		for what, bad := range map[string][]byte{"missing": nil, "cut": whole[:len(whole)-1],
			"damaged": bytes.Replace(whole, []byte("data 3"), []byte("data 4"), 1), "foreign": b.Get(names[4])} {
			b.Set(names[3], bad)
			n := 0
			var failed error
			for _, err := range g.Entries(t.Context(), 1, model.Through()) {
				if failed = err; err == nil {
					n++
				}
			}
			if n != 3 || !reader.IsBroken(failed) || !strings.Contains(failed.Error(), names[3][len(w.Name("")):]) {
				t.Errorf("%s: %d entries, error %v", what, n, failed)
			}
			if b.open != 0 {
				t.Errorf("%s: %d answers remain open", what, b.open)
			}
		}
	})
}

// The bucket is asked for several log objects at a time. One that does not follow the one before it is found anyway.
func TestLogObjectsAreOpenedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBucket{Memory: archivetest.NewMemory()}
		w := archivetest.New(t, b.Memory, archivetest.SampleStore, object.Key{})
		model := w.NewGroup("logged", 1)
		for i := range int64(24) {
			model.Put(i, fmt.Sprint("data ", i))
			w.Log(model)
		}
		read := func() (took time.Duration, err error) {
			a, err := reader.Open(t.Context(), b, w.Store, nil)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			g, err := a.Group(t.Context(), model.UUID)
			if err != nil {
				return 0, err
			}
			checkEntries(t, g, model, 1, model.Through())
			return time.Since(began), nil
		}
		// An object is asked for as soon as the eighth one before it was read.
		if took, err := read(); err != nil || took != 3*latency {
			t.Errorf("24 log objects were read within %v, not %v: %v", took, 3*latency, err)
		}
		name := w.Name(object.LogName(12))
		b.Set(name, b.Get(w.Name(object.LogName(11))))
		if _, err := read(); !errors.Is(err, object.ErrForeign) || !strings.Contains(err.Error(), object.LogName(12)) {
			t.Errorf("a log object of another place: error %v", err)
		}
		if b.open != 0 {
			t.Errorf("%d answers remain open", b.open)
		}
	})
}

// Every answer of the bucket is read to its end, because a client of HTTP can use the connection again only then. A
// segment that is read whole needs one request.
func TestAnswersAreReadToTheirEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, key := range map[string]object.Key{"plain": {}, "encrypted": archivetest.SampleKey(t)} {
			b := &slowBucket{Memory: archivetest.NewMemory()}
			w := archivetest.New(t, b.Memory, archivetest.SampleStore, key)
			model := w.NewGroup("large", 1)
			for i := range int64(6) {
				model.Put(i, strings.Repeat("d", 700<<10))
			}
			w.Copy(model, 3)
			a, err := reader.Open(t.Context(), b, w.Store, object.Keys{key})
			if err != nil {
				t.Fatal(err)
			}
			g := group(t, a, model)
			for range g.Sources(t.Context()) { // reads the headers
				continue
			}
			b.Opens()
			checkEntries(t, g, model, 1, model.Through())
			if n := b.Opens(); n != 2 {
				t.Errorf("%s: two segments were read by %d requests", name, n)
			}
			if b.unread > 0 {
				t.Errorf("%s: %d bytes of object %s came and were not read", name, b.unread, b.unreadObject)
			}
		}
	})
}
