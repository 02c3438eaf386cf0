package stores

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sheaf.dev/sheaf/bench/peers/store"
)

// This example shows that an adapter for another store needs little code. Its store appends to a file, and keeps each
// record's position in a map.

type place struct{ at, length int64 }

type oneFile struct {
	mu     sync.RWMutex
	f      *os.File
	end    int64
	places map[int64]place
}

func openOneFile(dir string, _ store.Options) (store.Store, error) {
	f, err := os.OpenFile(filepath.Join(dir, "records"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	s := &oneFile{f: f, places: map[int64]place{}}
	head := make([]byte, 16) // the header: id and length
	for {
		if _, err := f.ReadAt(head, s.end); errors.Is(err, io.EOF) {
			return s, nil
		} else if err != nil {
			return nil, err
		}
		id, length := int64(binary.LittleEndian.Uint64(head)), int64(binary.LittleEndian.Uint64(head[8:]))
		s.places[id] = place{s.end + 16, length}
		s.end += 16 + length
	}
}

func (s *oneFile) Put(batch []store.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []byte
	for _, r := range batch {
		out = binary.LittleEndian.AppendUint64(out, uint64(r.ID))
		out = binary.LittleEndian.AppendUint64(out, uint64(len(r.Data)))
		s.places[r.ID] = place{s.end + int64(len(out)), int64(len(r.Data))}
		out = append(out, r.Data...)
	}
	_, err := s.f.WriteAt(out, s.end)
	s.end += int64(len(out))
	return errors.Join(err, s.f.Sync())
}

func (s *oneFile) Get(id int64, into []byte) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.places[id]
	if !ok {
		return nil, store.ErrNotFound
	}
	from := len(into)
	into = append(into, make([]byte, p.length)...)
	_, err := s.f.ReadAt(into[from:], p.at)
	return into, err
}

func (s *oneFile) LoadAll(_ int, m *store.Memory) (int64, error) {
	for id := range s.places {
		data, err := s.Get(id, nil)
		if err != nil {
			return 0, err
		}
		m.Keep(0, id, data)
	}
	return int64(len(s.places)), nil
}

func (s *oneFile) Compact() error { return nil }
func (s *oneFile) Close() error   { return s.f.Close() }

func TestExample(t *testing.T) {
	contract(t, store.Kind{Name: "one file", Version: "1", Settings: "fsync after each batch", Open: openOneFile}, false)
}
