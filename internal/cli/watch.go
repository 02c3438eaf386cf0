package cli

import (
	"context"
	"fmt"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
)

// Watch calls visit with each message of a watch, until visit or the context ends it, or nobody answers any more.
func (c *Conn) Watch(ctx context.Context, request *recordv1.WatchRequest, visit func(*recordv1.WatchResponse) error) error {
	for {
		moved := false
		var visitErr error
		err := c.retry(ctx, func() error {
			if moved {
				return nil // tried again below, with patience anew
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := c.Records.Watch(ctx, request)
			if err != nil {
				return err
			}
			for {
				message, err := stream.Recv()
				if err != nil {
					return err
				}
				if visitErr = visit(message); visitErr != nil {
					return nil
				}
				request, moved = &recordv1.WatchRequest{Group: request.GetGroup(), Cursor: message.GetCursor()}, true
			}
		})
		switch {
		case visitErr != nil:
			return visitErr
		case err != nil || !moved:
			return fmt.Errorf("watching group %s: %w", request.GetGroup(), err)
		}
	}
}
