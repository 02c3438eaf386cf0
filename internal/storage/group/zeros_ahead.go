package group

import (
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Room that was only allocated costs a journal commit of the file system with each sync: its extents become written
// ones. So the sync of a small write takes zeros behind it along, and the next writes overwrite these: their syncs
// write data alone. What the journal makes durable needs none of that. See docs/adr/0009-zeros-ahead.md.
const (
	aheadWriteMax = 16 << 10 // greater writes share one commit among many bytes anyway
	aheadFactor   = 16       // zeros for so many writes of the same size
	aheadMax      = 256 << 10
	aheadMin      = 16 << 10
	// Of what the segment holds: a start after a kill reads the zeros, and in Index residency little else.
	aheadShare      = 32
	aheadShareIndex = 256
)

// aheadZeros is what is written ahead. Never changed.
var aheadZeros [aheadMax]byte

// zerosAhead knows how far the bytes of the active file were written, with data or zeros.
type zerosAhead struct {
	share int64 // what zeros may be of a segment: one part of so many

	file  vfs.File // the one that the rest is about
	cheap bool
	end   int64 // all before it were written
}

// zerosShare is zerosAhead.share.
func (r Residency) zerosShare() int64 {
	if r == Index {
		return aheadShareIndex
	}
	return aheadShare
}

// zeros comes before a sync of the bytes from begin to end, and writes zeros behind them where that pays, at most a
// share of what the segment holds. They are room as before, so that an error changes nothing but the speed.
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

// cut notes that the file was cut at end.
func (a *zerosAhead) cut(end int64) { a.end = min(a.end, end) }
