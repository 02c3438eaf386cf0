package serve

import (
	"sync/atomic"

	"sheaf.dev/sheaf/internal/call/message"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
)

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
		return answer.Overloaded(g.what, g.limit)
	}
	return nil
}

// Add implements message.Allowance.
func (g *gauge) Add(n int64) { g.used.Add(n) }

func (g *gauge) give(n int64) { g.used.Add(-n) }

// streamAnswers is what streams may hold of the room for answers. The rest is for Get, whose answer is gone in a
// moment: callers that do not read their streams must not keep others from reading a record.
type streamAnswers struct{ *gauge }

// StreamAnswers is the room that streams have for answers.
func (s *Server) StreamAnswers() message.Allowance { return streamAnswers{&s.answers} }

// getShare of the room for answers is kept for Get.
const getShare = 8

// Take implements message.Allowance.
func (a streamAnswers) Take(n, have int64) error {
	limit := a.limit - a.limit/getShare
	if used := a.used.Add(n); used > limit && used != have+n {
		a.used.Add(-n)
		return answer.Overloaded(a.what, limit)
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
