package serve

import (
	"sync/atomic"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
)

// gauge bounds a resource in use. Safe for concurrent use.
type gauge struct {
	what  string
	limit int64
	used  *atomic.Int64
}

func newGauge(what string, limit int64) gauge {
	return gauge{what: what, limit: limit, used: new(atomic.Int64)}
}

// take returns OVERLOADED if the limit would be exceeded. A single taker gets any amount, so that nothing is refused
// forever.
func (g *gauge) take(n int64) error { return g.Take(n, 0) }

// Take implements message.Allowance. It does what the method take does, for a caller that already holds the amount
// have.
func (g *gauge) Take(n, have int64) error {
	if used := g.used.Add(n); used > g.limit && used != have+n {
		g.used.Add(-n)
		return answer.Overloaded(g.what, g.limit)
	}
	return nil
}

// Add implements message.Allowance.
func (g *gauge) Add(n int64) { g.used.Add(n) }

func (g *gauge) give(n int64) { g.used.Add(-n) }

// StreamAnswers returns the answer memory that streams may use. The rest is for Get, whose answers are short-lived:
// callers that do not read their streams must not keep others from reading a record.
func (s *Server) StreamAnswers() message.Allowance {
	return &gauge{what: s.answers.what, limit: s.answers.limit - s.answers.limit/getShare, used: s.answers.used}
}

// getShare is a divisor: the answer memory divided by it is kept for Get.
const getShare = 8

const (
	// messageSize is the largest size of a message of results without the results: mainly its cursor.
	messageSize = 1 << 10
	// recordHeldBytes is the memory of a record's message without data and attributes.
	recordHeldBytes = 320
)

// answerSize returns an upper bound of the size of a record in an encoded answer and, if the record has attributes, in
// memory.
func answerSize(name string, rec *group.Record) int64 {
	n := 128 + len(name) + len(rec.Data)
	if len(rec.Attributes) > 0 {
		n += 512 + 4*len(rec.Attributes)
	}
	return int64(n)
}
