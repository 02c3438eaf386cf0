package shard

import (
	"errors"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/internal/message"
)

// sendWithin runs the handler of a stream, counts what it holds for its answers, and ends the stream where a message
// took longer than Limits.SendTimeout, or where the shard stops and nothing moves. The message that waits is given up when
// the stream has ended, and the handler with it.
func (s *Shard) sendWithin(srv any, stream grpc.ServerStream, method *methodMetrics, handler grpc.StreamHandler) error {
	out := message.NewStream(stream, message.Codec{}, s.streamAnswers(), s.cfg.Limits.SendTimeout)
	ended := make(chan error, 1)
	s.wait.Go(func() {
		var err error
		defer func() { ended <- err }()
		defer out.End()
		defer s.contain(method, &err)
		err = handler(srv, out)
	})
	err := out.Await(ended, s.stopped)
	switch {
	case errors.Is(err, message.ErrSlow):
		return slowReaderError(s.cfg.Limits.SendTimeout)
	case errors.Is(err, message.ErrStopping):
		return stoppingError()
	}
	return err
}
