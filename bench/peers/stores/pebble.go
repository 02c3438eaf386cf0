package stores

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"sheaf.dev/sheaf/bench/peers/store"
)

func pebbleKind() store.Kind {
	return store.Kind{
		Name: "Pebble", Version: store.ModuleVersion("github.com/cockroachdb/pebble/v2"),
		Settings: "batch.Commit(pebble.Sync); memtables of 64 MiB; no compression (the data has none); newest format",
		Open:     openPebble,
	}
}

type pebbleStore struct{ db *pebble.DB }

func openPebble(dir string, o store.Options) (store.Store, error) {
	cache := pebble.NewCache(max(o.CacheBytes, 8<<20))
	defer cache.Unref() // the database has its own reference to the cache
	opts := &pebble.Options{Cache: cache, MemTableSize: 64 << 20, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}}
	opts.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	db, err := pebble.Open(dir, opts)
	if err != nil {
		return nil, err
	}
	return &pebbleStore{db}, nil
}

func key(id int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(id)) }

func (s *pebbleStore) Put(batch []store.Record) error {
	b := s.db.NewBatch()
	for _, r := range batch {
		if err := b.Set(key(r.ID), r.Data, nil); err != nil {
			return errors.Join(err, b.Close())
		}
	}
	return errors.Join(b.Commit(pebble.Sync), b.Close())
}

func (s *pebbleStore) Get(id int64, into []byte) ([]byte, error) {
	data, closer, err := s.db.Get(key(id))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, store.ErrNotFound
	} else if err != nil {
		return nil, err
	}
	into = append(into, data...)
	return into, closer.Close()
}

// ends returns the smallest and the largest id. The result found is false if there are no records.
func (s *pebbleStore) ends() (first, last int64, err error) {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return 0, 0, err
	}
	first, last = 0, -1
	if it.First() {
		first = int64(binary.BigEndian.Uint64(it.Key()))
	}
	if it.Last() {
		last = int64(binary.BigEndian.Uint64(it.Key()))
	}
	return first, last, it.Close()
}

func (s *pebbleStore) LoadAll(n int, m *store.Memory) (int64, error) {
	first, last, err := s.ends()
	if err != nil {
		return 0, err
	}
	err = store.Ranges(first, last, n, func(worker int, from, through int64) error {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: key(from), UpperBound: key(through + 1)})
		if err != nil {
			return err
		}
		for ok := it.First(); ok; ok = it.Next() {
			m.Keep(worker, int64(binary.BigEndian.Uint64(it.Key())), it.Value())
		}
		return it.Close()
	})
	records, _ := m.Records()
	return records, err
}

func (s *pebbleStore) Compact() error {
	first, last, err := s.ends()
	if err != nil || last < first {
		return err
	}
	return s.db.Compact(context.Background(), key(first), key(last+1), true)
}

func (s *pebbleStore) Close() error { return s.db.Close() }

// quiet discards what a store logs, except fatal messages.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, a ...any) {
	pebble.DefaultLogger.Fatalf(format, a...)
}
