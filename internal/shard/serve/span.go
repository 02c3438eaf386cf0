package serve

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"sheaf.dev/sheaf/internal/consensus/replica"
)

// spanOf begins the span of a write. The span lasts from when the group gets the write until the write is acknowledged.
// It includes the wait for a round, the round's syncs here and, with several copies, those of a majority. spanOf
// returns nil if the call is not traced.
func (s *Server) spanOf(ctx context.Context, w *write) trace.Span {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return nil
	}
	_, span := s.opts.Tracer.Start(ctx, "commit", trace.WithAttributes(
		attribute.String("sheaf.group", w.where.Group), attribute.String("sheaf.shard", s.opts.Name),
		attribute.Int64("sheaf.bytes", w.bytes)))
	return span
}

// endSpan ends the span of a write with its outcome. The sync of this shard that made the write durable becomes a child
// span.
func (s *Server) endSpan(ctx context.Context, w *write, sync *replica.SyncTimes, err error) {
	if err != nil {
		w.span.SetStatus(codes.Error, err.Error())
	}
	if sync != nil {
		_, below := s.opts.Tracer.Start(trace.ContextWithSpan(ctx, w.span), "sync", trace.WithTimestamp(sync.Began),
			trace.WithAttributes(
				attribute.String("sheaf.group", w.where.Group), attribute.String("sheaf.shard", s.opts.Name)))
		below.End(trace.WithTimestamp(sync.Ended))
	}
	w.span.End()
}
