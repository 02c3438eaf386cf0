package client

import (
	"context"
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
)

// WatchOptions are the options of Watch. The zero value watches the changes that are committed from now on.
type WatchOptions struct {
	// Cursor is a cursor from an earlier watch of this group. This watch resumes after it.
	Cursor []byte
	// OnCursor is called with a cursor that points after all changes yielded so far. The first call occurs immediately,
	// before any change.
	OnCursor func(cursor []byte)
}

// Watch yields the changes of a group as they are committed, in the order of the group's log. A change is the latest
// state of a record that was put or deleted (Record.Deleted). Each change is yielded at least once, but an older change
// may be left out if a newer one of the same record replaced it before the server read it. The sequence does not end
// unless the caller stops it, ctx is done, or an error occurs. A broken stream resumes from its cursor, even after the
// group has moved to another shard. Records above 1 MiB are yielded without data (HasData is false).
//
// To start with all existing records, save the first cursor of a watch, Scan the group, then watch from that cursor. If
// a watch fails with ErrCursorExpired, repeat these steps, because the server no longer knows which records were
// deleted after the cursor.
func (c *Client) Watch(ctx context.Context, group string, options *WatchOptions) iter.Seq2[Record, error] {
	o := orZero(options)
	return func(yield func(Record, error) bool) {
		if group == "" {
			yield(Record{}, invalid("watch", "name the group"))
			return
		}
		what := call{op: "watch group " + group, group: group}
		w := &watchStream{
			client: c, options: o, request: recordv1.WatchRequest{Group: group, Cursor: o.Cursor}, yield: yield,
			attempts: c.attempts(what),
		}
		if err := w.run(ctx); err != nil {
			yield(Record{}, err)
		}
	}
}

// watchStream is a stream of changes. It is resumed if it breaks.
type watchStream struct {
	client   *Client
	options  WatchOptions
	request  recordv1.WatchRequest
	attempts attempts
	yield    func(Record, error) bool
}

// run receives changes until an error occurs. It returns nil if the caller stops the iteration.
func (w *watchStream) run(ctx context.Context) error {
	for {
		to, err := w.client.target(w.attempts.what, w.attempts.N())
		if err != nil {
			return w.attempts.newError(err)
		}
		stopped, err := w.once(ctx, to)
		if stopped {
			return nil
		}
		if ctx.Err() != nil {
			return w.attempts.newError(context.Cause(ctx))
		}
		if err := w.attempts.failed(ctx, to, err, true); err != nil {
			return err
		}
	}
}

func (w *watchStream) once(ctx context.Context, to target) (stopped bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := recordv1.NewRecordServiceClient(to.conn).Watch(ctx, &w.request)
	if err != nil {
		return false, err
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.Unavailable, "the stream ended")
		}
		if err != nil {
			return false, err
		}
		w.attempts.Progress()
		for _, r := range message.GetRecords() {
			record, err := checked(&w.attempts.what, r)
			if err != nil {
				return false, err
			}
			if !w.yield(record, nil) {
				return true, nil
			}
		}
		w.request.Cursor = message.GetCursor()
		if w.options.OnCursor != nil {
			w.options.OnCursor(w.request.GetCursor())
		}
	}
}
