package group

import (
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	allocateBytesMin = 256 << 10
	allocateBytesMax = 16 << 20
	// allocateShare limits a step: at most one part in this number of the volume's spare bytes is allocated in advance,
	// because there are many groups.
	allocateShare = 64
)

// allocation manages the bytes in the file of the active segment after the end of the log: they are allocated, and read
// as zeros. It uses only that file, and no frame in it. Guarded by writer.mu.
type allocation struct {
	segmentBytes int64
	spare        func() int64 // Options.Spare

	allocated int64 // size of the file
	inherited bool  // the space after the end was allocated by the previous process
	opened    int64 // the end when the log was opened; 0: the segment began later
	ahead     zerosAhead
}

// begin is called for a new file, which ends where the log ends.
func (a *allocation) begin(end int64) { a.allocated, a.opened, a.inherited = end, 0, false }

// allocate extends the file so that it has space for bytes more after end. It works in steps, so that not every sync
// has to write the size. It returns ErrNoSpace if the disk is full.
func (a *allocation) allocate(file vfs.File, end, bytes int64) error {
	need := end + bytes
	if need <= a.allocated {
		return nil
	}
	// The step is small for a group that was opened and is hardly written to.
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
		return format.Lacking(err)
	}
	a.allocated = want
	return nil
}

// giveBack frees the space after end. The space reads as zero before and after, so nothing has to be durable. It
// returns ErrNoSpace if the disk is full.
func (a *allocation) giveBack(file vfs.File, end int64) error {
	if a.allocated <= end {
		return nil
	}
	return format.Lacking(a.truncate(file, end))
}

// truncate truncates the file at end.
func (a *allocation) truncate(file vfs.File, end int64) error {
	if err := file.Truncate(end); err != nil {
		return err
	}
	a.allocated = end
	a.ahead.truncate(end)
	return nil
}
