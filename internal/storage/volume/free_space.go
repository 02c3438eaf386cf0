package volume

import (
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	reservePercent  = 5
	reserveBytesMax = 1 << 30
	reserveBytesMin = 16 << 20
	lookInterval    = 50 * time.Millisecond
)

// freeSpace is the free space of the file system when it was last read.
type freeSpace struct {
	looked   time.Time // time of the last read, or zero if there was none
	space    vfs.Space
	admitted int64 // number of bytes admitted since the last read
}

// FullError means that a write was refused because it would use bytes of the reserve. It is an ErrFull.
type FullError struct {
	Dir          string
	Bytes        int64 // size of the write
	FreeBytes    int64 // free bytes at the last read, minus the bytes admitted since then
	ReserveBytes int64 // bytes that must remain free
	Delete       bool  // whether the write was a delete
}

// Error states the size of the write, the free space, the reserve and the remedy.
func (e *FullError) Error() string {
	what, whose := "write", ""
	if e.Delete {
		what, whose = "delete", " by deletes"
	}
	return fmt.Sprintf(
		"%s %s: a %s of %d bytes is refused: %d bytes are free, and %d bytes must stay free%s: delete records and "+
			"compact, make the disk larger, or move groups to other shards",
		ErrFull, e.Dir, what, e.Bytes, e.FreeBytes, e.ReserveBytes, whose)
}

// Is makes errors.Is(err, ErrFull) true.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// reserve returns the number of bytes that must remain free on a file system of the given size.
func (v *Volume) reserve(totalBytes int64) int64 {
	if v.reserveBytes > 0 {
		return v.reserveBytes
	}
	return max(min(totalBytes/100*reservePercent, reserveBytesMax), reserveBytesMin)
}

// look reads the free space of the file system. The caller holds mu.
func (v *Volume) look() error {
	space, err := v.fs.Space(v.dir)
	if err != nil {
		return fmt.Errorf("volume %s: %w: %w", v.dir, ErrFreeSpaceUnknown, err)
	}
	v.freeSpace = freeSpace{looked: v.now(), space: space}
	return nil
}

// Admit decides whether bytes may be written now. It returns a *FullError, which is an ErrFull, if the write would use
// bytes of the reserve, and an ErrFreeSpaceUnknown if the number of free bytes cannot be read. Deletes may use half of
// the reserve. Admit reads the free space at most every 50 ms, so freed space is noticed without a restart. Between two
// reads it counts the admitted bytes. Bytes that were admitted before the last read and are not on the disk yet do not
// count, because the reserve covers them.
func (v *Volume) Admit(bytes int64, forDelete bool) error {
	if bytes < 0 {
		return fmt.Errorf("volume %s: a write of %d bytes cannot be", v.dir, bytes)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lock == nil {
		return fmt.Errorf("volume %s: %w", v.dir, ErrClosed)
	}
	if v.freeSpace.looked.IsZero() || v.now().Sub(v.freeSpace.looked) >= lookInterval {
		if err := v.look(); err != nil {
			return err
		}
	}
	reserve := v.reserve(v.freeSpace.space.TotalBytes)
	if forDelete {
		reserve /= 2
	}
	free := v.freeSpace.space.FreeBytes - v.freeSpace.admitted
	if bytes > free-reserve { // the sum bytes+reserve could overflow
		return &FullError{Dir: v.dir, Bytes: bytes, FreeBytes: max(0, free), ReserveBytes: reserve, Delete: forDelete}
	}
	v.freeSpace.admitted += bytes
	return nil
}

// Space returns the current size and free space of the volume, and its reserve in bytes.
func (v *Volume) Space() (space vfs.Space, reserveBytes int64, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.look(); err != nil {
		return vfs.Space{}, 0, err
	}
	return v.freeSpace.space, v.reserve(v.freeSpace.space.TotalBytes), nil
}

// TotalBytes returns the file system's size in bytes, as it was last read, or 0 if the size is not known.
func (v *Volume) TotalBytes() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.freeSpace.looked.IsZero() {
		if err := v.look(); err != nil {
			return 0
		}
	}
	return v.freeSpace.space.TotalBytes
}

// Spare returns the number of free bytes above the reserve, or 0 if the number is not known.
func (v *Volume) Spare() int64 {
	space, err := v.fs.Space(v.dir)
	if err != nil {
		return 0
	}
	return max(0, space.FreeBytes-v.reserve(space.TotalBytes))
}
