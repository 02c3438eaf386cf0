package group

import (
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	allocateBytesMin = 256 << 10
	allocateBytesMax = 16 << 20
	// allocateShare is a divisor: a step is at most the volume's spare bytes divided by allocateShare. The limit is
	// needed because many groups allocate space in advance.
	allocateShare = 64
)

// allocation manages the space after the end of the log in the file of the active segment. This space is allocated in
// advance, and reads as zeros. allocation uses no other file, and reads no frames. Guarded by writer.mu.
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

// The first write to space that was only allocated turns its extents into written ones, and so costs a journal commit
// of the file system with the next sync. So the sync of a small write also writes zeros after the data, and the next
// writes overwrite these zeros: their syncs write only data. Writes that the journal makes durable do not need this.
// See docs/adr/0009-zeros-ahead.md.
const (
	aheadWriteMax = 16 << 10 // larger writes share one commit among many bytes anyway
	aheadFactor   = 16       // zeros are written for this many writes of the same size
	aheadMax      = 256 << 10
	aheadMin      = 16 << 10
	// aheadShare and aheadShareIndex are divisors: the zeros are limited to the size of the segment's content divided
	// by one of them, or to aheadMin if that is more. The limit is needed because a start after a kill reads the zeros.
	// aheadShareIndex is for Index residency, in which such a start reads little else.
	aheadShare      = 32
	aheadShareIndex = 256
)

// aheadZeros holds the zeros to write. It is never changed.
var aheadZeros [aheadMax]byte

// zerosAhead records the offset up to which the active file was written, with data or zeros.
type zerosAhead struct {
	share int64 // divisor, see aheadShare

	file  vfs.File // the file that the other fields refer to
	cheap bool
	end   int64 // everything before this offset was written
}

// zeros is called before a sync of the bytes from begin to end. It writes zeros after them if that is worthwhile: at
// most aheadMin, or the size of the segment's content divided by the field share, whichever is greater. The zeros count
// as free space, so an error only makes writes slower.
func (a *zerosAhead) zeros(file vfs.File, begin, end, allocated int64) {
	if a.file != file {
		a.file, a.cheap, a.end = file, file.CheapOverwrite(), 0
	}
	if !a.cheap || end <= a.end {
		return
	}
	a.end = end
	n := end - begin
	if n > aheadWriteMax {
		return
	}
	to := min(end+min(aheadFactor*n, aheadMax-format.BlockBytes, max(aheadMin, end/a.share)), allocated)
	if cut := to &^ (format.BlockBytes - 1); cut > end {
		to = cut
	}
	if to <= end {
		return
	}
	if _, err := file.WriteAt(aheadZeros[:to-end], end); err == nil {
		a.end = to
	}
}

// truncate records that the file was truncated at end.
func (a *zerosAhead) truncate(end int64) { a.end = min(a.end, end) }
