package stores

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"sheaf.dev/sheaf/bench/peers/store"
)

func bboltKind() store.Kind {
	return store.Kind{
		Name: "bbolt", Version: store.ModuleVersion("go.etcd.io/bbolt"),
		Settings: "each commit synced; batches of waiting callers in one commit; free list in memory; pages filled to 90 % " +
			"as ids ascend",
		Open: openBbolt,
	}
}

type bboltStore struct {
	db     *bbolt.DB
	name   string
	gather store.Gather
}

var bucket = []byte("records")

func openBbolt(dir string, _ store.Options) (store.Store, error) {
	s := &bboltStore{name: filepath.Join(dir, "bolt.db")}
	s.gather.Commit = s.commit
	return s, s.open()
}

func (s *bboltStore) open() (err error) {
	if s.db, err = bbolt.Open(s.name, 0o600, &bbolt.Options{NoFreelistSync: true,
		FreelistType: bbolt.FreelistMapType}); err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucket)
		return err
	})
}

func (s *bboltStore) Put(batch []store.Record) error { return s.gather.Put(batch) }

func (s *bboltStore) commit(batch []store.Record) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucket)
		b.FillPercent = 0.9
		for _, r := range batch {
			if err := b.Put(key(r.ID), r.Data); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *bboltStore) Get(id int64, into []byte) ([]byte, error) {
	err := s.db.View(func(tx *bbolt.Tx) error {
		data := tx.Bucket(bucket).Get(key(id))
		if data == nil {
			return store.ErrNotFound
		}
		into = append(into, data...)
		return nil
	})
	return into, err
}

func (s *bboltStore) LoadAll(n int, m *store.Memory) (int64, error) {
	first, last := int64(0), int64(-1)
	err := s.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucket).Cursor()
		if k, _ := c.First(); k != nil {
			first = int64(binary.BigEndian.Uint64(k))
		}
		if k, _ := c.Last(); k != nil {
			last = int64(binary.BigEndian.Uint64(k))
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	err = store.Ranges(first, last, n, func(worker int, from, through int64) error {
		return s.db.View(func(tx *bbolt.Tx) error {
			c := tx.Bucket(bucket).Cursor()
			for k, data := c.Seek(key(from)); k != nil; k, data = c.Next() {
				id := int64(binary.BigEndian.Uint64(k))
				if id > through {
					break
				}
				m.Keep(worker, id, data)
			}
			return nil
		})
	})
	records, _ := m.Records()
	return records, err
}

// Compact writes the data to a new file, as the bbolt command does.
func (s *bboltStore) Compact() error {
	aside, err := bbolt.Open(s.name+".new", 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		return err
	}
	if err := bbolt.Compact(aside, s.db, 16<<20); err != nil {
		return errors.Join(err, aside.Close())
	}
	if err := errors.Join(aside.Sync(), aside.Close(), s.db.Close(), os.Rename(s.name+".new", s.name)); err != nil {
		return err
	}
	return errors.Join(syncDir(filepath.Dir(s.name)), s.open())
}

func (s *bboltStore) Close() error { return s.db.Close() }
