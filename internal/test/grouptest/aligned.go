package grouptest

import (
	"fmt"
	"io"
	"syscall"
)

// alignedBlock is the required alignment, in bytes, of reads that bypass the page cache.
const alignedBlock = 4096

// AlignedReader refuses unaligned reads, like a file that was opened with OpenDirect.
type AlignedReader struct {
	Image []byte
	Bad   map[int64]bool // numbers of blocks that cannot be read
}

// ReadAt returns EINVAL if the offset or the length is not aligned, and EIO for bad blocks.
func (a AlignedReader) ReadAt(p []byte, offset int64) (int, error) {
	if offset%alignedBlock != 0 || len(p)%alignedBlock != 0 {
		return 0, fmt.Errorf("%w: %d bytes at %d", syscall.EINVAL, len(p), offset)
	}
	for at := offset; at < offset+int64(len(p)); at += alignedBlock {
		if a.Bad[at/alignedBlock] {
			return 0, syscall.EIO
		}
	}
	n := copy(p, a.Image[min(offset, int64(len(a.Image))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
