package stores

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"sheaf.dev/sheaf/bench/peers/store"
)

func badgerKind() store.Kind {
	return store.Kind{
		Name: "Badger", Version: store.ModuleVersion("github.com/dgraph-io/badger/v4"),
		Settings: "SyncWrites; no compression, no block cache (tables are mapped); else its defaults (values below 1 MiB " +
			"in the tree)",
		Open: openBadger,
	}
}

type badgerStore struct{ db *badger.DB }

func openBadger(dir string, _ store.Options) (store.Store, error) {
	db, err := badger.Open(badger.DefaultOptions(dir).WithSyncWrites(true).WithCompression(options.None).
		WithBlockCacheSize(0).WithMetricsEnabled(false).WithLogger(nil))
	if err != nil {
		return nil, err
	}
	return &badgerStore{db}, nil
}

func (s *badgerStore) Put(batch []store.Record) error {
	txn := s.db.NewTransaction(true)
	defer func() { txn.Discard() }()
	for _, r := range batch {
		err := txn.Set(key(r.ID), r.Data)
		if errors.Is(err, badger.ErrTxnTooBig) {
			if err := txn.Commit(); err != nil {
				return err
			}
			txn = s.db.NewTransaction(true)
			err = txn.Set(key(r.ID), r.Data)
		}
		if err != nil {
			return err
		}
	}
	return txn.Commit()
}

func (s *badgerStore) Get(id int64, into []byte) ([]byte, error) {
	err := s.db.View(func(txn *badger.Txn) error {
		item, err := txn.Get(key(id))
		if errors.Is(err, badger.ErrKeyNotFound) {
			return store.ErrNotFound
		} else if err != nil {
			return err
		}
		return item.Value(func(data []byte) error {
			into = append(into, data...)
			return nil
		})
	})
	return into, err
}

// ends returns the smallest and the largest id.
func (s *badgerStore) ends() (first, last int64, err error) {
	last = -1
	err = s.db.View(func(txn *badger.Txn) error {
		for _, reverse := range []bool{false, true} {
			it := txn.NewIterator(badger.IteratorOptions{Reverse: reverse})
			if reverse {
				it.Seek(key(math.MaxInt64))
			} else {
				it.Rewind()
			}
			if it.Valid() {
				id := int64(binary.BigEndian.Uint64(it.Item().Key()))
				if reverse {
					last = id
				} else {
					first = id
				}
			}
			it.Close()
		}
		return nil
	})
	return first, last, err
}

func (s *badgerStore) LoadAll(n int, m *store.Memory) (int64, error) {
	first, last, err := s.ends()
	if err != nil {
		return 0, err
	}
	err = store.Ranges(first, last, n, func(worker int, from, through int64) error {
		return s.db.View(func(txn *badger.Txn) error {
			it := txn.NewIterator(badger.IteratorOptions{})
			defer it.Close()
			for it.Seek(key(from)); it.Valid(); it.Next() {
				id := int64(binary.BigEndian.Uint64(it.Item().Key()))
				if id > through {
					return nil
				}
				if err := it.Item().Value(func(data []byte) error { m.Keep(worker, id, data); return nil }); err != nil {
					return err
				}
			}
			return nil
		})
	})
	records, _ := m.Records()
	return records, err
}

func (s *badgerStore) Compact() error {
	if err := s.db.Flatten(2); err != nil {
		return err
	}
	for {
		err := s.db.RunValueLogGC(0.5)
		if errors.Is(err, badger.ErrNoRewrite) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (s *badgerStore) Close() error { return s.db.Close() }
