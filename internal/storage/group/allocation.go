package group

import (
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	allocateBytesMin = 256 << 10
	allocateBytesMax = 16 << 20
	// allocateShare of what the volume has to spare is allocated ahead at most, for there are many groups.
	allocateShare = 64
)

// allocation is what the file of the active segment has behind the end of the log: allocated, and read as zeros. It
// touches that file alone, and no frame in it. Guarded by writer.mu.
type allocation struct {
	segmentBytes int64
	spare        func() int64 // Options.Spare

	allocated int64 // size of the file
	inherited bool  // what is behind the end was allocated by the process before
	opened    int64 // the end when the log was opened; 0: the segment was begun since
	ahead     zerosAhead
}

// begin is about a new file, which ends where the log does.
func (a *allocation) begin(end int64) { a.allocated, a.opened, a.inherited = end, 0, false }

// allocate makes the file long enough for bytes more behind end, in steps, so that a sync need not write the size each
// time. ErrNoSpace.
func (a *allocation) allocate(file vfs.File, end, bytes int64) error {
	need := end + bytes
	if need <= a.allocated {
		return nil
	}
	// Little for a group that is opened and hardly written to.
	step := min(max(end-a.opened, allocateBytesMin), allocateBytesMax)
	if a.spare != nil {
		step = min(step, max(0, a.spare()/allocateShare))
	}
	want := max(need, min(need+step, a.segmentBytes))
	err := file.Allocate(a.allocated, want-a.allocated)
	if err != nil && want > need {
		want = need
		err = file.Allocate(a.allocated, want-a.allocated)
	}
	if err != nil {
		return format.NoSpace(err)
	}
	a.allocated = want
	return nil
}

// giveBack frees the room behind end. It reads as zero before and after, so that nothing has to be durable. ErrNoSpace.
func (a *allocation) giveBack(file vfs.File, end int64) error {
	if a.allocated <= end {
		return nil
	}
	return format.NoSpace(a.truncate(file, end))
}

// truncate makes the file end at end.
func (a *allocation) truncate(file vfs.File, end int64) error {
	if err := file.Truncate(end); err != nil {
		return err
	}
	a.allocated = end
	a.ahead.cut(end)
	return nil
}
