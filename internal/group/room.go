package group

import (
	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/vfs"
)

const (
	allocateBytesMin = 256 << 10
	allocateBytesMax = 16 << 20
	// allocateShare of what the volume has to spare is allocated ahead at most, for there are many groups.
	allocateShare = 64
)

// room is what the file of the active segment has behind the end of the log: allocated, and read as zeros. It touches
// that file alone, and no frame in it. Guarded by writer.mu.
type room struct {
	segmentBytes int64
	spare        func() int64 // Options.Spare

	allocated int64 // size of the file
	inherited bool  // what is behind the end was allocated by the process before
	opened    int64 // the end when the log was opened; 0: the segment was begun since
	ahead     writeAhead
}

// begin is about a new file, which ends where the log does.
func (r *room) begin(end int64) { r.allocated, r.opened, r.inherited = end, 0, false }

// allocate makes the file long enough for bytes more behind end, in steps, so that a sync need not write the size each
// time. ErrNoSpace.
func (r *room) allocate(file vfs.File, end, bytes int64) error {
	need := end + bytes
	if need <= r.allocated {
		return nil
	}
	step := min(max(end-r.opened, allocateBytesMin), allocateBytesMax) // little for a group that is opened and hardly written to
	if r.spare != nil {
		step = min(step, max(0, r.spare()/allocateShare))
	}
	want := max(need, min(need+step, r.segmentBytes))
	err := file.Allocate(r.allocated, want-r.allocated)
	if err != nil && want > need {
		want = need
		err = file.Allocate(r.allocated, want-r.allocated)
	}
	if err != nil {
		return format.NoSpace(err)
	}
	r.allocated = want
	return nil
}

// giveBack frees the room behind end. It reads as zero before and after, so that nothing has to be durable. ErrNoSpace.
func (r *room) giveBack(file vfs.File, end int64) error {
	if r.allocated <= end {
		return nil
	}
	return format.NoSpace(r.truncate(file, end))
}

// truncate makes the file end at end.
func (r *room) truncate(file vfs.File, end int64) error {
	if err := file.Truncate(end); err != nil {
		return err
	}
	r.allocated = end
	r.ahead.cut(end)
	return nil
}
