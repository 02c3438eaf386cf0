package serve

import (
	"errors"
	"math"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/answer"
)

// neverSlow is for calls that take as long as their callers want.
const neverSlow = time.Duration(math.MaxInt64)

// running is a call in progress.
type running struct {
	method  *methodMetrics
	began   time.Time
	request any // identifies the group if the call was slow; nil for a stream
}

// wasSlow reports a call that took longer than its method should.
func (s *Server) wasSlow(c *running, took time.Duration, err error) {
	one := &recordv1.SlowCall{
		BeganUnixNs: c.began.UnixNano(), DurationNs: took.Nanoseconds(), Method: c.method.name, Group: s.groupOf(c.request),
		Code: answer.CodeOf(err).String(),
	}
	var reason *answer.Error
	if errors.As(err, &reason) {
		one.Reason = reason.Reason
	}
	s.shard.WasSlow(one)
}

// groupOf returns the group of a request. It returns an empty string if the request has no group, or if the group is
// not here. The returned name is the shard's own copy, because the name in the request may be as long as its caller
// likes.
func (s *Server) groupOf(request any) (name string) {
	switch in := request.(type) {
	case interface{ GetKey() *recordv1.RecordKey }:
		name = in.GetKey().GetGroup()
		if routing := s.shard.Routing(); routing.Mode == placement.Hash && in.GetKey() != nil {
			name = placement.GroupName(routing.GroupOf(in.GetKey().GetId()))
		}
	case interface{ GetGroup() string }:
		name = in.GetGroup()
	}
	return s.shard.Known(name)
}
