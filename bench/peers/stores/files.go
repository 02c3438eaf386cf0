package stores

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/peers/store"
)

func filesKind() store.Kind {
	return store.Kind{
		Name: "files", Version: "os",
		Settings: "one file per record, 1,000 to a folder; written aside, fsync, renamed; the folder synced once per batch",
		Open:     func(dir string, _ store.Options) (store.Store, error) { return &filesStore{dir: dir}, nil },
	}
}

type filesStore struct {
	dir  string
	next atomic.Int64 // number for the name of the next temporary file
}

func (s *filesStore) folder(id int64) string {
	return filepath.Join(s.dir, strconv.FormatInt(id/1000, 10))
}

func (s *filesStore) name(id int64) string {
	return filepath.Join(s.folder(id), strconv.FormatInt(id, 10))
}

func (s *filesStore) Put(batch []store.Record) error {
	folders := map[string]bool{}
	for _, r := range batch {
		folder := s.folder(r.ID)
		if !folders[folder] {
			if err := s.makeFolder(folder); err != nil {
				return err
			}
			folders[folder] = true
		}
		if err := s.write(r); err != nil {
			return err
		}
	}
	for folder := range folders {
		if err := syncDir(folder); err != nil {
			return err
		}
	}
	return nil
}

// makeFolder creates a folder durably. It syncs the parent even if another caller has just created the folder.
func (s *filesStore) makeFolder(folder string) error {
	if _, err := os.Stat(folder); err == nil {
		return nil
	}
	if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(s.dir)
}

func (s *filesStore) write(r store.Record) error {
	aside := s.name(r.ID) + ".new" + strconv.FormatInt(s.next.Add(1), 10)
	f, err := os.Create(aside)
	if err != nil {
		return err
	}
	_, err = f.Write(r.Data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(aside, s.name(r.ID))
}

func (s *filesStore) Get(id int64, into []byte) ([]byte, error) {
	f, err := os.Open(s.name(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, store.ErrNotFound
	} else if err != nil {
		return nil, err
	}
	into, err = readAll(f, into)
	return into, errors.Join(err, f.Close())
}

// readAll appends the content of a file to the slice into.
func readAll(f *os.File, into []byte) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := len(into)
	into = append(into, make([]byte, info.Size())...)
	_, err = f.ReadAt(into[from:], 0)
	return into, err
}

func (s *filesStore) LoadAll(n int, m *store.Memory) (int64, error) {
	folders, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, err
	}
	var next atomic.Int64
	err = drive.Parallel(n, func(worker int) error {
		var buffer []byte
		for {
			i := next.Add(1) - 1
			if i >= int64(len(folders)) {
				return nil
			}
			folder := filepath.Join(s.dir, folders[i].Name())
			names, err := os.ReadDir(folder)
			if err != nil {
				return err
			}
			for _, name := range names {
				id, err := strconv.ParseInt(name.Name(), 10, 64)
				if err != nil {
					continue // the program was killed while it wrote this temporary file
				}
				if buffer, err = s.Get(id, buffer[:0]); err != nil {
					return err
				}
				m.Keep(worker, id, buffer)
			}
		}
	})
	records, _ := m.Records()
	return records, err
}

// Compact does nothing, because a replaced file occupies no space.
func (s *filesStore) Compact() error { return nil }

func (s *filesStore) Close() error { return nil }

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
