package archivetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/archive/bucket"
)

// Memory is a bucket in memory. A test may change its objects while a reader uses them.
type Memory struct {
	mu      sync.Mutex
	objects map[string][]byte
	opens   map[string]int

	// OnOpen, if not nil, returns the bytes that a reader receives in place of the requested part of an object. The
	// argument attempt counts the calls to Open for this name. It is 1 in the first call. Set OnOpen before the bucket
	// is used.
	OnOpen func(name string, attempt int, content []byte) (io.Reader, error)
}

var _ bucket.Bucket = (*Memory)(nil)

// NewMemory returns an empty bucket.
func NewMemory() *Memory { return &Memory{objects: map[string][]byte{}, opens: map[string]int{}} }

// Names returns the names of all objects, in order.
func (m *Memory) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.objects))
}

// Get returns the bytes of an object, or nil if the object does not exist. The caller must not change these bytes.
func (m *Memory) Get(name string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

// Set replaces an object. If content is nil, Set removes the object.
func (m *Memory) Set(name string, content []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if content == nil {
		delete(m.objects, name)
		return
	}
	m.objects[name] = content
}

// Opens returns how many times Open was called since the last call to Opens.
func (m *Memory) Opens() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, opens := range m.opens {
		n += opens
	}
	clear(m.opens)
	return n
}

// Create implements bucket.Bucket.
func (m *Memory) Create(_ context.Context, name string, size int64, content io.Reader) error {
	if err := bucket.CheckName(name); err != nil {
		return err
	}
	b, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	if int64(len(b)) != size {
		return fmt.Errorf("create %s: %d bytes, not %d", name, len(b), size)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.objects[name]; ok {
		return &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	m.objects[name] = b
	return nil
}

// Open implements bucket.Bucket.
func (m *Memory) Open(_ context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	m.mu.Lock()
	b, ok := m.objects[name]
	m.opens[name]++
	attempt := m.opens[name]
	m.mu.Unlock()
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	b = b[min(offset, int64(len(b))):]
	if length >= 0 {
		b = b[:min(length, int64(len(b)))]
	}
	if m.OnOpen != nil {
		r, err := m.OnOpen(name, attempt, b)
		return io.NopCloser(r), err
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

// Stat implements bucket.Bucket.
func (m *Memory) Stat(_ context.Context, name string) (bucket.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.objects[name]
	if !ok {
		return bucket.Info{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return bucket.Info{Name: name, Bytes: int64(len(b)), Created: time.Unix(0, 0)}, nil
}

// List implements bucket.Bucket.
func (m *Memory) List(_ context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		for _, name := range m.Names() {
			b := m.Get(name)
			if b != nil && strings.HasPrefix(name, prefix) && name > after &&
				!yield(bucket.Info{Name: name, Bytes: int64(len(b)), Created: time.Unix(0, 0)}, nil) {
				return
			}
		}
	}
}

// Delete implements bucket.Bucket.
func (m *Memory) Delete(_ context.Context, name string) error {
	m.Set(name, nil)
	return nil
}

// Close implements bucket.Bucket.
func (m *Memory) Close() error { return nil }
