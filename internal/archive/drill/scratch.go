package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Scratch is a folder for the restored files. A drill uses two names in it, scratchName and lockName, and leaves all
// others alone.
type Scratch struct {
	FS  vfs.FS
	Dir string
	// BytesMax limits the files of a group in the folder; 0 means that only the free space of the file system does.
	BytesMax int64
}

const (
	scratchName = "sheaf-drill"
	lockName    = "sheaf-drill.lock"
	// slackBytes is how much space must remain free besides the files of a group, for hints and the files of the log.
	slackBytes = 16 << 20
)

// ErrNoRoom means that a group is larger than the scratch folder.
var ErrNoRoom = errors.New("the scratch folder has no room")

// begin takes the folder, so that no other drill can use it, and removes what a drill that was killed has left in it.
func (s *Scratch) begin() (end func() error, err error) {
	if err := s.FS.MkdirAll(s.Dir); err != nil {
		return nil, fmt.Errorf("the scratch folder %s: %w", s.Dir, err)
	}
	lock, err := s.FS.Lock(path.Join(s.Dir, lockName))
	if err != nil {
		if errors.Is(err, vfs.ErrLocked) {
			err = errors.New("another drill is using it: wait for its end, or give a folder of its own")
		}
		return nil, fmt.Errorf("the scratch folder %s: %w", s.Dir, err)
	}
	if err := s.clear(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return func() error { return errors.Join(s.clear(), lock.Close()) }, nil
}

// dir is the folder of the group that is being restored.
func (s *Scratch) dir() string { return path.Join(s.Dir, scratchName) }

// clear removes all restored files.
func (s *Scratch) clear() error {
	if err := removeAll(s.FS, s.dir()); err != nil {
		return fmt.Errorf("what a drill has left in the scratch folder cannot be removed: %w", err)
	}
	return nil
}

// room returns an ErrNoRoom if files of the given size do not fit.
func (s *Scratch) room(bytes int64) error {
	if s.BytesMax > 0 && bytes+slackBytes > s.BytesMax {
		return fmt.Errorf("%w: the files have %d bytes, %d more are needed to check them, and at most %d may be used",
			ErrNoRoom, bytes, slackBytes, s.BytesMax)
	}
	space, err := s.FS.Space(s.Dir)
	if err != nil {
		return fmt.Errorf("the scratch folder %s: %w", s.Dir, err)
	}
	if bytes+slackBytes > space.FreeBytes {
		return fmt.Errorf("%w: the files have %d bytes, %d more are needed to check them, and %s has %d free", ErrNoRoom,
			bytes, slackBytes, s.Dir, space.FreeBytes)
	}
	return nil
}

// removeAll removes a file, or a folder with all that is in it. It is no error if the name does not exist.
func removeAll(fsys vfs.FS, name string) error {
	info, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.IsDir() {
		var names []string
		if names, err = fsys.List(name); err == nil {
			for _, n := range names {
				err = errors.Join(err, removeAll(fsys, path.Join(name, n)))
			}
		}
	}
	if err != nil {
		return err
	}
	return fsys.Remove(name)
}

// read opens a file of the group that is being restored.
func (s *Scratch) read(_ context.Context, name string) (io.ReadCloser, error) {
	f, err := s.FS.Open(path.Join(s.dir(), name))
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, 0, size), f}, nil
}
