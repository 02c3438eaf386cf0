package serve

import (
	"errors"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/shard/answer"
)

// sendWithin runs the handler of a stream, and counts the memory held for its answers. It ends the stream if a message
// takes longer than Options.SendTimeout, or if the shard stops and nothing moves. When the stream has ended, the
// waiting message is given up, and with it the handler.
func (s *Server) sendWithin(srv any, stream grpc.ServerStream, method *methodMetrics,
	handler grpc.StreamHandler) error {
	out := message.NewStream(stream, message.Codec{}, s.StreamAnswers(), s.opts.SendTimeout)
	ended := make(chan error, 1)
	s.streams.Go(func() {
		var err error
		defer func() { ended <- err }()
		defer out.End()
		defer s.contain(method, &err)
		err = handler(srv, out)
	})
	err := out.Await(ended, s.stopped)
	switch {
	case errors.Is(err, message.ErrSlow):
		return answer.SlowReader(s.opts.SendTimeout)
	case errors.Is(err, message.ErrStopping):
		return answer.Stopping()
	}
	return err
}
