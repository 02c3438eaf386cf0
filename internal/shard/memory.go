package shard

import (
	"fmt"
	"sync/atomic"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/message"
)

// budget gates the memory of all groups of a shard. It implements group.Budget.
type budget struct {
	limit int64 // bytes; 0: none
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

// admit refuses a write that would need n bytes more than there are.
func (b *budget) admit(n int64) error {
	if used := b.used.Load(); b.limit > 0 && used+n > b.limit {
		return fmt.Errorf("%w: a write of %d bytes on top of the %d in use, limit %d", group.ErrMemory, n, used, b.limit)
	}
	return nil
}

// indexBytesPerRecord is what a new record may cost in the index while its table grows.
const indexBytesPerRecord = 34

// writeMemory is the memory that a write of so many stored bytes needs.
func writeMemory(residency group.Residency, bytes int64) int64 {
	if residency == group.Resident {
		return bytes + indexBytesPerRecord
	}
	return indexBytesPerRecord
}

// gauge bounds something that is being worked on. Safe for concurrent use.
type gauge struct {
	what  string
	limit int64
	used  atomic.Int64
}

// take answers OVERLOADED where the limit would be passed. One taker passes whatever it asks for, so that nothing is
// refused for ever.
func (g *gauge) take(n int64) error { return g.Take(n, 0) }

// Take implements message.Allowance: take for one that has taken have before.
func (g *gauge) Take(n, have int64) error {
	if used := g.used.Add(n); used > g.limit && used != have+n {
		g.used.Add(-n)
		return overloadedError(g.what, g.limit)
	}
	return nil
}

// Add implements message.Allowance.
func (g *gauge) Add(n int64) { g.used.Add(n) }

func (g *gauge) give(n int64) { g.used.Add(-n) }

// streamAnswers is what streams may hold of the room for answers. The rest is for Get, whose answer is gone in a moment: callers that
// do not read their streams must not keep others from reading a record.
type streamAnswers struct{ *gauge }

func (s *Shard) streamAnswers() message.Allowance { return streamAnswers{&s.answers} }

// getShare of the room for answers is kept for Get.
const getShare = 8

// Take implements message.Allowance.
func (a streamAnswers) Take(n, have int64) error {
	limit := a.limit - a.limit/getShare
	if used := a.used.Add(n); used > limit && used != have+n {
		a.used.Add(-n)
		return overloadedError(a.what, limit)
	}
	return nil
}

const (
	// messageSize is what a message of results may take beside the results: its cursor above all.
	messageSize = 1 << 10
	// recordHeldBytes is what a record's message takes in memory beside data and attributes.
	recordHeldBytes = 320
)

// answerSize bounds what a record takes in an encoded answer, and, where it has attributes, in memory.
func answerSize(name string, rec *group.Record) int64 {
	n := 128 + len(name) + len(rec.Data)
	if len(rec.Attributes) > 0 {
		n += 512 + 4*len(rec.Attributes)
	}
	return int64(n)
}
