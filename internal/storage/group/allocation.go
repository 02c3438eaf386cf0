package group

import (
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	allocateBytesMin = 256 << 10
	allocateBytesMax = 16 << 20
	// allocateShare is a divisor. In one step, at most the volume's spare bytes divided by allocateShare are allocated,
	// because many groups allocate space in advance.
	allocateShare = 64
)

// allocation manages the space after the end of the log in the active segment's file. This space was allocated in
// advance, and reads as zeros. The methods of allocation use no other file, and read no frames. Guarded by writer.mu.
type allocation struct {
	segmentBytes int64
	spare        func() int64 // value of Options.Spare

	allocated int64 // size of the file
	inherited bool  // the previous process allocated the space after the end
	opened    int64 // end of the segment when the log was opened, or 0 if the segment began later
	ahead     zerosAhead
}

// begin records that the log continues in a new file, and that the log ends where that file ends.
func (a *allocation) begin(end int64) { a.allocated, a.opened, a.inherited = end, 0, false }

// allocate extends the file so that it has space for the given number of bytes after end. It extends the file in large
// steps, so that not every sync has to write the file's size. It returns ErrNoSpace if the disk is full.
func (a *allocation) allocate(file vfs.File, end, bytes int64) error {
	need := end + bytes
	if need <= a.allocated {
		return nil
	}
	// A group that has written little since it was opened allocates in small steps.
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

// giveBack frees the space after end. The bytes there are zeros before and after the call, so nothing has to be made
// durable. It returns ErrNoSpace if the disk is full.
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

// The first write to space that was only allocated turns its extents into written ones, so that the next sync costs a
// file system journal commit. Therefore the sync of a small write also writes zeros after the data. The next writes
// overwrite these zeros, so that their syncs write only data. Writes that the journal makes durable do not need zeros.
// See docs/adr/0009-zeros-ahead.md.
const (
	aheadWriteMax = 16 << 10 // larger writes get no zeros, because a journal commit hardly slows them down
	aheadFactor   = 16       // zeros are written for this many writes of the same size
	aheadMax      = 256 << 10
	aheadMin      = 16 << 10
	// aheadShare and aheadShareIndex are divisors: the zeros take at most the size of the segment's content divided by one
	// of them, or aheadMin if that is more. They are limited because a start after a kill reads them. aheadShareIndex
	// applies to Index residency, where such a start reads little else.
	aheadShare      = 32
	aheadShareIndex = 256
)

// aheadZeros holds the zeros that are written. It must not be changed.
var aheadZeros [aheadMax]byte

// zerosAhead records up to which offset the active file was written, with data or with zeros.
type zerosAhead struct {
	share int64 // aheadShare or aheadShareIndex

	file  vfs.File // the file to which the other fields refer
	cheap bool
	end   int64 // offset before which every byte was written
}

// zeros must be called before the bytes from begin to end are synced. It writes zeros after these bytes if that is
// worthwhile. The number of zeros is at most aheadMin, or the size of the segment's content divided by share,
// whichever is greater. The zeros are not part of the log, so an error only makes later writes slower.
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
