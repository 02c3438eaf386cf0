package stores

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"

	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"sheaf.dev/sheaf/bench/peers/store"
)

func sqliteKind() store.Kind {
	return store.Kind{
		Name: "SQLite", Version: store.ModuleVersion("modernc.org/sqlite") + " (modernc)",
		Settings: "journal_mode=WAL, synchronous=FULL; batches of waiting callers in one transaction; page_size=16384, " +
			"checkpoint each 64 MiB, mmap_size=8 GiB",
		Open: openSQLite,
	}
}

type sqliteStore struct {
	write  *sql.DB // limited to one connection
	read   *sql.DB
	gather store.Gather
	get    *sql.Stmt
}

// sqliteReaders is the number of connections that read concurrently.
const sqliteReaders = 16

func openSQLite(dir string, o store.Options) (_ store.Store, err error) {
	const pragmas = "?_pragma=page_size(16384)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)" +
		"&_pragma=wal_autocheckpoint(4096)&_pragma=busy_timeout(60000)&_pragma=mmap_size(8589934592)" +
		"&_pragma=cache_size(-%d)"
	name := "file:" + filepath.Join(dir, "records.sqlite")
	s := &sqliteStore{}
	s.gather.Commit = s.commit
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.write, err = sql.Open("sqlite", name+fmt.Sprintf(pragmas, 16<<10)); err != nil {
		return nil, err
	}
	s.write.SetMaxOpenConns(1)
	if _, err = s.write.ExecContext(context.Background(),
		"CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, data BLOB NOT NULL)"); err != nil {
		return nil, err
	}
	if s.read, err = sql.Open("sqlite", name+fmt.Sprintf(pragmas,
		max(o.CacheBytes, 32<<20)/sqliteReaders>>10)); err != nil {
		return nil, err
	}
	s.read.SetMaxOpenConns(sqliteReaders)
	s.read.SetMaxIdleConns(sqliteReaders)
	s.get, err = s.read.PrepareContext(context.Background(), "SELECT data FROM records WHERE id = ?")
	return s, err
}

func (s *sqliteStore) Put(batch []store.Record) error { return s.gather.Put(batch) }

func (s *sqliteStore) commit(batch []store.Record) (err error) {
	ctx := context.Background()
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	put, err := tx.PrepareContext(ctx,
		"INSERT INTO records VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET data = excluded.data")
	if err != nil {
		return err
	}
	for _, r := range batch {
		if _, err := put.ExecContext(ctx, r.ID, r.Data); err != nil {
			return err
		}
	}
	return errors.Join(put.Close(), tx.Commit())
}

func (s *sqliteStore) Get(id int64, into []byte) ([]byte, error) {
	rows, err := s.get.QueryContext(context.Background(), id)
	if err != nil {
		return nil, err
	}
	var data sql.RawBytes
	found := rows.Next()
	if found {
		err = rows.Scan(&data)
		into = append(into, data...)
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	if !found {
		return nil, store.ErrNotFound
	}
	return into, nil
}

func (s *sqliteStore) LoadAll(n int, m *store.Memory) (int64, error) {
	ctx := context.Background()
	var first, last int64
	if err := s.read.QueryRowContext(ctx, "SELECT COALESCE(MIN(id), 0), COALESCE(MAX(id), -1) FROM records").
		Scan(&first, &last); err != nil {
		return 0, err
	}
	err := store.Ranges(first, last, n, func(worker int, from, through int64) (err error) {
		rows, err := s.read.QueryContext(ctx, "SELECT id, data FROM records WHERE id BETWEEN ? AND ?", from, through)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Err(), rows.Close()) }()
		var id int64
		var data sql.RawBytes
		for rows.Next() {
			if err := rows.Scan(&id, &data); err != nil {
				return err
			}
			m.Keep(worker, id, data)
		}
		return nil
	})
	records, _ := m.Records()
	return records, err
}

func (s *sqliteStore) Compact() error {
	for _, q := range []string{"VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"} {
		if _, err := s.write.ExecContext(context.Background(), q); err != nil {
			return err
		}
	}
	return nil
}

func (s *sqliteStore) Close() error {
	var errs []error
	if s.get != nil {
		errs = append(errs, s.get.Close())
	}
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}
