package disk

import (
	"fmt"
	"sync/atomic"

	"sheaf.dev/sheaf/internal/storage/group"
)

// budget bounds the memory of all groups of a shard. It implements group.Budget.
type budget struct {
	limit int64 // bytes; 0: no limit
	used  atomic.Int64
}

var _ group.Budget = (*budget)(nil)

// Take implements group.Budget.
func (b *budget) Take(n int64) error {
	used := b.used.Add(n)
	if n <= 0 || b.limit == 0 || used <= b.limit {
		return nil
	}
	b.used.Add(-n)
	return fmt.Errorf("%w: %d bytes more than the %d in use, limit %d", group.ErrMemory, n, used-n, b.limit)
}

// admit refuses a write that would need n bytes if fewer are left.
func (b *budget) admit(n int64) error {
	if used := b.used.Load(); b.limit > 0 && used+n > b.limit {
		return fmt.Errorf("%w: a write of %d bytes on top of the %d in use, limit %d", group.ErrMemory, n, used, b.limit)
	}
	return nil
}

// indexBytesPerRecord is the largest cost of a new record in the index while its table grows.
const indexBytesPerRecord = 34

// writeMemory returns the memory that a write needs if it stores the given number of bytes.
func writeMemory(residency group.Residency, bytes int64) int64 {
	if residency == group.Resident {
		return bytes + indexBytesPerRecord
	}
	return indexBytesPerRecord
}
