package archiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
)

// memory is the content of a bucket, which is never lost, so it shows what is durable.
type memory struct {
	mu      sync.Mutex
	objects map[string][]byte
	made    map[string]time.Time
	keys    object.Keys // keys of the archive: the first one encrypts what an archiver creates that starts now
}

// rotate makes archivers that start from now on encrypt with another key, which is the first one if there was none.
func (m *memory) rotate() {
	key, err := object.NewKey(bytes.Repeat([]byte{byte(len(m.keys) + 1)}, object.KeyBytes))
	if err != nil {
		panic(err)
	}
	m.keys = append(object.Keys{key}, m.keys...)
}

func newMemory() *memory {
	return &memory{objects: make(map[string][]byte), made: make(map[string]time.Time)}
}

func (m *memory) names(prefix string) (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.objects {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (m *memory) get(name string) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.objects[name]
	return b, ok
}

func (m *memory) put(name string, b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[name], m.made[name] = b, time.Now()
}

// create is the Create of the bucket itself, without any simulated fault.
func (m *memory) create(name string, b []byte) error {
	if _, ok := m.get(name); ok {
		return fs.ErrExist
	}
	m.put(name, b)
	return nil
}

// fault is one kind of fault that a bucket simulates.
type fault string

const (
	faultRefused  fault = "nothing was created, and an error came"
	faultLost     fault = "the object was created, and the answer was lost"
	faultPartial  fault = "the connection broke in the middle of an upload"
	faultSlow     fault = "the answer took a minute"
	faultUnread   fault = "an object could not be read"
	faultShort    fault = "an object ended early"
	faultFlipped  fault = "a bit was flipped on its way"
	faultStale    fault = "a list had not the newest objects"
	faultUnlisted fault = "a list broke off"
)

var bucketFaults = []fault{faultRefused, faultLost, faultPartial, faultSlow, faultUnread, faultShort, faultFlipped,
	faultStale, faultUnlisted}

var errBucket = errors.New("503 slow down")

// view is the bucket as one archiver sees it, with that archiver's faults. Its delays pass in the virtual time of the
// test (sim_test.go).
type view struct {
	memory *memory
	rng    *rand.Rand
	rate   float64       // probability of a fault in one call
	fired  map[fault]int // number of times that each fault occurred
	only   fault         // if set, no other fault occurs
	// damaged is the number of reads of each object, one after another, that were damaged on their way. It stays below
	// readTries, because an archiver takes an object for damaged otherwise (TestAnObjectIsLost).
	damaged map[string]int

	steps   int    // number of calls so far
	killAt  int    // this call and all later ones fail; 0 means never
	before  bool   // the process is killed before, not after, the call takes effect
	kill    func() // called once
	isDead  bool
	blocked chan struct{} // if not nil, calls wait until it is closed
	hook    func(op, name string)
}

var _ bucket.Bucket = (*view)(nil)

func newView(m *memory, seed uint64, rate float64) *view {
	return &view{memory: m, rng: rand.New(rand.NewPCG(seed, 1)), rate: rate, fired: make(map[fault]int),
		damaged: make(map[string]int)}
}

// change changes which faults occur from now on.
func (v *view) change(change func(v *view)) {
	v.memory.mu.Lock()
	defer v.memory.mu.Unlock()
	change(v)
}

// step begins a call. If the process is killed before the call takes effect, step returns an error. Otherwise it
// returns a function, which the caller must call once the call has taken effect. That function returns an error if
// the process is killed at that moment. The memory's mutex also guards the view.
func (v *view) step(op, name string) (after func() error, err error) {
	v.memory.mu.Lock()
	blocked, hook := v.blocked, v.hook
	v.memory.mu.Unlock()
	if blocked != nil {
		<-blocked
	}
	if hook != nil {
		hook(op, name)
	}
	v.memory.mu.Lock()
	defer v.memory.mu.Unlock()
	v.steps++
	if v.killAt > 0 && v.steps >= v.killAt && !v.isDead {
		v.isDead = true
		defer v.kill()
		if !v.before {
			return func() error { return context.Canceled }, nil
		}
	}
	if v.isDead {
		return nil, context.Canceled
	}
	return func() error { return nil }, nil
}

// hits decides at random whether the fault f occurs in this call.
func (v *view) hits(f fault) bool {
	v.memory.mu.Lock()
	defer v.memory.mu.Unlock()
	if v.only != "" && v.only != f || v.rng.Float64() >= v.rate {
		return false
	}
	v.fired[f]++
	return true
}

func (v *view) number(n int) int {
	v.memory.mu.Lock()
	defer v.memory.mu.Unlock()
	return v.rng.IntN(n)
}

func (v *view) Create(ctx context.Context, name string, size int64, content io.Reader) error {
	after, err := v.step("create", name)
	if err != nil {
		return err
	}
	if v.hits(faultRefused) {
		return errBucket
	}
	if v.hits(faultPartial) {
		_, _ = io.CopyN(io.Discard, content, size/2)
		return errBucket
	}
	b, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	if int64(len(b)) != size {
		return fmt.Errorf("%d bytes came, not %d", len(b), size)
	}
	if v.hits(faultSlow) {
		time.Sleep(time.Minute)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	err = v.memory.create(name, b)
	if killed := after(); killed != nil {
		return killed
	}
	if v.hits(faultLost) {
		return errBucket
	}
	return err
}

func (v *view) Open(_ context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if _, err := v.step("open", name); err != nil {
		return nil, err
	}
	if v.hits(faultUnread) {
		return nil, errBucket
	}
	b, ok := v.memory.get(name)
	if !ok {
		return nil, fs.ErrNotExist
	}
	b = b[min(offset, int64(len(b))):]
	if length >= 0 {
		b = b[:min(length, int64(len(b)))]
	}
	return io.NopCloser(bytes.NewReader(v.damage(name, b))), nil
}

// damage returns the content of an object as it arrives.
func (v *view) damage(name string, b []byte) []byte {
	v.memory.mu.Lock()
	damaged := v.damaged[name]
	delete(v.damaged, name)
	v.memory.mu.Unlock()
	if len(b) == 0 || damaged == readTries-1 {
		return b
	}
	short, flipped := v.hits(faultShort), v.hits(faultFlipped)
	if short {
		b = b[:v.number(len(b))]
	}
	if flipped && len(b) > 0 {
		b = bytes.Clone(b)
		b[v.number(len(b))] ^= 1 << v.number(8)
	}
	if short || flipped {
		v.change(func(v *view) { v.damaged[name] = damaged + 1 })
	}
	return b
}

func (v *view) Stat(_ context.Context, name string) (bucket.Info, error) {
	if _, err := v.step("stat", name); err != nil {
		return bucket.Info{}, err
	}
	if v.hits(faultUnread) {
		return bucket.Info{}, errBucket
	}
	b, ok := v.memory.get(name)
	if !ok {
		return bucket.Info{}, fs.ErrNotExist
	}
	return bucket.Info{Name: name, Bytes: int64(len(b))}, nil
}

func (v *view) List(_ context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		if _, err := v.step("list", prefix); err != nil {
			yield(bucket.Info{}, err)
			return
		}
		stale := v.hits(faultStale)
		for _, name := range v.memory.names(prefix) {
			v.memory.mu.Lock()
			age, bytes := time.Since(v.memory.made[name]), int64(len(v.memory.objects[name]))
			v.memory.mu.Unlock()
			if name <= after || stale && age < 2*time.Minute {
				continue
			}
			if v.hits(faultUnlisted) {
				yield(bucket.Info{}, errBucket)
				return
			}
			if !yield(bucket.Info{Name: name, Bytes: bytes}, nil) {
				return
			}
		}
	}
}

func (v *view) Delete(context.Context, string) error {
	return errors.New("an archiver deletes nothing")
}

func (v *view) Close() error { return nil }
