package gateway

import (
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	arrow "sheaf.dev/sheaf/internal/call/flight"
	"sheaf.dev/sheaf/internal/call/web"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
)

// batch answers a request for the records with certain ids.
func (s *webServer) batch(a *answer, r *http.Request) error {
	if _, err := web.Parameters(r.URL); err != nil {
		return err
	}
	if r.ContentLength > web.BatchBytesMax {
		a.w.Header().Set("Connection", "close")
		return web.ErrTooLong
	}
	a.isTar = true
	const full = recordv1.RecordService_BatchGet_FullMethodName
	err := s.calls.stream(callContext(r), full, &webStream{answer: a},
		s.g.counted(full, func(stream grpc.ServerStream) error {
			// The interceptors have admitted the caller before the body is read.
			b, err := readBatchBody(a, r)
			if err != nil {
				return err
			}
			return s.g.batchTar(stream, b)
		}))
	if err != nil && !a.begun {
		a.w.Header().Set("Connection", "close") // the body may not have been read
	}
	return err
}

// batchTar streams the records of a batch in the order of their ids, and at the end the failures.
func (g *Gateway) batchTar(stream grpc.ServerStream, b *web.Batch) error {
	ctx := stream.Context()
	if b.View != nil {
		return viewOf(*b.View, true)
	}
	t, err := g.router.wait(ctx)
	if err != nil {
		return err
	}
	if t.hash == nil || b.Group != "" {
		if err := placement.ValidateGroupName(b.Group); err != nil {
			return invalid("group", "%v", err)
		}
		if err := access.May(ctx, access.Get, b.Group); err != nil {
			return err
		}
	}
	out, err := g.newTarStream(stream)
	if err != nil {
		return err
	}
	f := &flightMany{g: g, stream: stream, command: arrow.NewGet(b.Group, b.IDs), held: message.HeldOf(ctx)}
	if err := f.held.More(8 * int64(len(b.IDs))); err != nil {
		return err
	}
	var failures []byte
	err = f.eachWindow(func(first int, read *flightRead) error {
		for i, result := range read.results {
			if failed, err := out.result(b, first+i, result); err != nil {
				return err
			} else if failed != nil {
				before := len(failures)
				failures = web.AppendFailure(failures, first+i, b.IDs[first+i], b.Group, failed)
				if err := f.held.More(int64(len(failures) - before)); err != nil {
					return err
				}
			}
		}
		return out.flush()
	})
	if err != nil {
		return err
	}
	out.buf = web.AppendEnd(web.AppendFile(out.buf, web.FailuresName, failures))
	return out.flush()
}

// result adds the result of a read. It returns failed if the record could not be read, and err if the archive cannot
// continue.
func (t *tarStream) result(b *web.Batch, at int, result *recordv1.BatchGetResult) (failed, err error) {
	r := result.GetRecord()
	failed = status.ErrorProto(result.GetStatus())
	switch {
	case result == nil:
		return fail(codes.Unavailable, reason.ShardUnreachable, "a shard has not answered"), nil
	case failed != nil && (r == nil || reason.Of(failed) != reason.UseDownload):
		return failed, nil
	case failed != nil:
		begun, err := t.download(&recordv1.RecordKey{Group: b.Group, Id: b.IDs[at]}, "")
		if !begun {
			return err, nil
		}
		return nil, err
	}
	return nil, t.add(r, scan(mem.BufferSlice{mem.SliceBuffer(r.GetData())}))
}
