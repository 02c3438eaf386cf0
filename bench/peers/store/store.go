// Package store is what a store must do to take part in the comparison. A store of your own is one file: a type with
// the five methods of Store, and a Kind in the list of package stores.
package store

import (
	"errors"
	"runtime/debug"
	"sync"

	"sheaf.dev/sheaf/bench/drive"
)

// ErrNotFound says that there is no such record.
var ErrNotFound = errors.New("no such record")

// Record is what is stored.
type Record struct {
	ID   int64
	Data []byte // not changed and not kept by the store after Put
}

// Store holds records in a folder. Put and Get are safe for concurrent use.
type Store interface {
	// Put stores a batch; a record that is there is replaced. When it returns, all of it survives a power cut.
	Put(batch []Record) error
	// Get appends the data of a record to into; ErrNotFound.
	Get(id int64, into []byte) ([]byte, error)
	// LoadAll reads every record into memory with n workers, by m.Keep, and gives their number. A store that keeps the
	// data itself (Options.InMemory) has nothing left to do, unless m.Each is set.
	LoadAll(n int, m *Memory) (records int64, err error)
	// Compact frees the space of what was replaced.
	Compact() error
	Close() error
}

// Kind is a store that can be opened.
type Kind struct {
	Name     string
	Version  string
	Settings string // what makes it durable, and what else differs from its defaults
	Ours     bool
	// Open opens the folder, which exists and may be empty.
	Open func(dir string, o Options) (Store, error)
}

// Options of Open.
type Options struct {
	CacheBytes int64 // that the store may use as a cache of its own
	InMemory   bool  // a store that can keeps all data in memory from its start on
}

// Memory is where LoadAll puts the records: copied, in a list with their ids, which is the least that a program needs
// to work on them. No index is built.
type Memory struct {
	// Each is given every record, for tests; called by several workers at once.
	Each func(id int64, data []byte)

	arenas []arena
}

type arena struct {
	chunk []byte     // the last one
	lists [][]Record // full ones but the last
	_     [64]byte   // workers write side by side
}

const (
	chunkBytes  = 4 << 20
	listRecords = 16 << 10
)

// NewMemory for so many workers.
func NewMemory(workers int) *Memory { return &Memory{arenas: make([]arena, workers)} }

// Keep copies a record. Each worker has a number of its own, from 0.
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

// Records that were kept, and their bytes.
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

// Ranges divides the ids from first to last among n workers, which run at once, and gives the first error.
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

// Gather joins the batches of callers that wait at the same time into one commit, for stores with one writer.
type Gather struct {
	Commit func(batch []Record) error

	mu      sync.Mutex // held while a commit runs
	waiting sync.Mutex // guards queue
	queue   []*gathered
}

type gathered struct {
	batch []Record
	done  bool
	err   error
}

// Put returns when a commit that held the batch is done.
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

// ModuleVersion is that of a module that this program was built with.
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
