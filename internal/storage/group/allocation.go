package group

import (
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	allocateBytesMin = 256 << 10
	allocateBytesMax = 16 << 20
	// allocateShare is a divisor: a step is at most the volume's spare bytes divided by it. The limit is needed because
	// many groups allocate space in advance.
	allocateShare = 64
)

// allocation manages the bytes after the end of the log in the file of the active segment: they are allocated, and
// read as zeros. It uses no other file, and no frame in this one. Guarded by writer.mu.
type allocation struct {
	segmentBytes int64
	spare        func() int64 // Options.Spare

	allocated int64 // size of the file
	inherited bool  // the previous process allocated the space after the end
	opened    int64 // the end of the segment when the log was opened; 0: the segment began later
	ahead     zerosAhead
}

// begin is called for a new file. The size of the file is the end of the log.
func (a *allocation) begin(end int64) { a.allocated, a.opened, a.inherited = end, 0, false }

// allocate extends the file so that it has space for the given number of bytes after end. It extends in steps, so
// that not every sync has to write the file's size. It returns ErrNoSpace if the disk is full.
func (a *allocation) allocate(file vfs.File, end, bytes int64) error {
	need := end + bytes
	if need <= a.allocated {
		return nil
	}
	// A group that has written little since it was opened gets small steps.
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
		return format.MarkShortage(err)
	}
	a.allocated = want
	return nil
}

// giveBack frees the space after end. The space reads as zeros before and after, so nothing has to be durable. It
// returns ErrNoSpace if the disk is full.
func (a *allocation) giveBack(file vfs.File, end int64) error {
	if a.allocated <= end {
		return nil
	}
	return format.MarkShortage(a.truncate(file, end))
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
