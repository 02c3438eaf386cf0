package shard

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// spanOf begins the span of a write from when its group gets it until it is acknowledged: the wait for a round, the round's syncs here
// and, with several copies, those of a majority. Nil: the call is not traced.
func (s *Shard) spanOf(ctx context.Context, w *write) trace.Span {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return nil
	}
	_, span := s.cfg.Tracer.Start(ctx, "commit", trace.WithAttributes(
		attribute.String("sheaf.group", w.where.group), attribute.String("sheaf.shard", s.cfg.Name), attribute.Int64("sheaf.bytes", w.bytes)))
	return span
}

// endSpan ends the span of a write with its outcome.
func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
