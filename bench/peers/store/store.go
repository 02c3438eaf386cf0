// Package store defines what a store must do to take part in the comparison. To add a store, write one file with a
// type that has the five methods of Store, and add a Kind to the list in package stores.
package store

import (
	"errors"
	"runtime/debug"
	"sync"

	"sheaf.dev/sheaf/bench/drive"
)

// ErrNotFound means that there is no such record.
var ErrNotFound = errors.New("no such record")

// Record is the id and the data of a record.
type Record struct {
	ID   int64
	Data []byte // the store must neither change the data, nor keep a reference to it after Put
}

// Store holds records in a folder. Put and Get are safe for concurrent use.
type Store interface {
	// Put stores a batch and replaces records that exist. When it returns, the whole batch survives a power cut.
	Put(batch []Record) error
	// Get appends the record's data to the slice into, and returns the result. It returns ErrNotFound if there is no such
	// record.
	Get(id int64, into []byte) ([]byte, error)
	// LoadAll reads every record into memory with n workers, and returns the number of records. The workers call
	// m.Keep. A store that already keeps the data in memory (Options.InMemory) has to call m.Keep only if m.Each is
	// set.
	LoadAll(n int, m *Memory) (records int64, err error)
	// Compact frees the space of replaced records.
	Compact() error
	Close() error
}

// Kind is a kind of store that can be opened.
type Kind struct {
	Name     string
	Version  string
	Settings string // options that make the store durable, and other settings that differ from its defaults
	Ours     bool
	// Open opens a store in the folder, which exists and may be empty.
	Open func(dir string, o Options) (Store, error)
}

// Options are the options of Open.
type Options struct {
	CacheBytes int64 // bytes that the store may use as its own cache
	InMemory   bool  // keep all data in memory from the start, if the store supports this
}

// Memory receives the records that LoadAll reads. It keeps a copy of each record in a list, without an index. This is
// the minimum that a program needs to work with records.
type Memory struct {
	// Each, if not nil, is called with every record. Tests use it. Several workers call it concurrently.
	Each func(id int64, data []byte)

	arenas []arena
}

type arena struct {
	chunk []byte     // the chunk that is being filled
	lists [][]Record // all lists except the last are full
	_     [64]byte   // padding that keeps the arenas of different workers on different cache lines
}

const (
	chunkBytes  = 4 << 20
	listRecords = 16 << 10
)

// NewMemory returns a Memory for the given number of workers.
func NewMemory(workers int) *Memory { return &Memory{arenas: make([]arena, workers)} }

// Keep keeps a copy of a record. Each worker passes its own number, counted from 0.
func (m *Memory) Keep(worker int, id int64, data []byte) {
	a := &m.arenas[worker]
	if len(a.chunk)+len(data) > cap(a.chunk) {
		a.chunk = make([]byte, 0, max(chunkBytes, len(data)))
	}
	from := len(a.chunk)
	a.chunk = append(a.chunk, data...)
	last := len(a.lists) - 1
	if last < 0 || len(a.lists[last]) == listRecords {
		a.lists = append(a.lists, make([]Record, 0, listRecords))
		last++
	}
	a.lists[last] = append(a.lists[last], Record{ID: id, Data: a.chunk[from:len(a.chunk):len(a.chunk)]})
	if m.Each != nil {
		m.Each(id, data)
	}
}

// Records returns the number of records and the number of their bytes.
func (m *Memory) Records() (records, bytes int64) {
	for i := range m.arenas {
		for _, list := range m.arenas[i].lists {
			records += int64(len(list))
			for j := range list {
				bytes += int64(len(list[j].Data))
			}
		}
	}
	return records, bytes
}

// Ranges divides the ids from first to last among n concurrent workers, and returns the first error.
func Ranges(first, last int64, n int, work func(worker int, from, through int64) error) error {
	if last < first {
		return nil
	}
	n = int(min(int64(n), last-first+1))
	each := (last-first)/int64(n) + 1
	return drive.Parallel(n, func(w int) error {
		from := first + int64(w)*each
		return work(w, from, min(from+each-1, last))
	})
}

// Gather combines the batches of concurrent callers into one commit, for stores that allow only one writer.
type Gather struct {
	Commit func(batch []Record) error

	mu      sync.Mutex // held during a commit
	waiting sync.Mutex // guards queue
	queue   []*gathered
}

type gathered struct {
	batch []Record
	done  bool
	err   error
}

// Put adds a batch to a commit, and returns when that commit is done.
func (g *Gather) Put(batch []Record) error {
	mine := &gathered{batch: batch}
	g.waiting.Lock()
	g.queue = append(g.queue, mine)
	g.waiting.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if mine.done {
		return mine.err
	}
	g.waiting.Lock()
	all := g.queue
	g.queue = nil
	g.waiting.Unlock()
	var records []Record
	for _, w := range all {
		records = append(records, w.batch...)
	}
	err := g.Commit(records)
	for _, w := range all {
		w.done, w.err = true, err
	}
	return err
}

// ModuleVersion returns the version of a module that is linked into this program.
func ModuleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return "unknown"
}
