package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// Process describes the sender of traces. Empty fields are left out.
type Process struct {
	Service string // value of the attribute service.name, unless OTEL_SERVICE_NAME sets a different one
	Version string // value of service.version
	Store   string // value of sheaf.store
	Shard   string // value of sheaf.shard
}

// Traces sends the spans of a process to an OpenTelemetry collector. The methods of a nil Traces do nothing. Safe for
// concurrent use.
type Traces struct {
	provider *sdktrace.TracerProvider
	logger   *slog.Logger
}

// tracesStopTime limits how long a stopping process waits for the collector to accept its last spans.
const tracesStopTime = 3 * time.Second

// tracedServices is the prefix of the full names of the traced methods. It selects the methods that clients call.
// Streams between shards have no spans, because they last as long as the shards run. Health checks have no spans,
// because they are too frequent.
const tracedServices = "/sheaf.record.v1."

// StartTraces starts to send traces if the standard variables of OpenTelemetry request traces. They do if an OTLP
// endpoint is set, and neither OTEL_SDK_DISABLED nor OTEL_TRACES_EXPORTER disables traces. Otherwise StartTraces
// returns nil. It does not wait for the collector. Spans that cannot be sent are logged and dropped. The error reports
// invalid variables.
func StartTraces(ctx context.Context, process Process, logger *slog.Logger) (*Traces, error) {
	if !tracesWanted() {
		return nil, nil //nolint:nilnil // nil is a Traces that sends nothing
	}
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "grpc")
	if protocol != "grpc" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %q: traces are sent by grpc alone", protocol)
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	var attributes []attribute.KeyValue
	for _, a := range []struct{ key, value string }{
		{"service.name", process.Service}, {"service.version", process.Version}, {"sheaf.store", process.Store},
		{"sheaf.shard", process.Shard},
	} {
		if a.value != "" {
			attributes = append(attributes, attribute.String(a.key, a.value))
		}
	}
	of, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attributes...),
		resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Warn("traces are not sent", "error", err) }))
	// The provider itself reads OTEL_TRACES_SAMPLER and the limits of spans and batches.
	return &Traces{sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(of)), logger}, nil
}

func tracesWanted() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter != "" && exporter != "otlp" {
		return false
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// ServerOptions returns options that make a gRPC server trace its RPCs.
func (t *Traces) ServerOptions() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(t.options()...))}
}

// DialOptions returns options that make RPCs on a connection propagate the trace.
func (t *Traces) DialOptions() []grpc.DialOption {
	if t == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(t.options()...))}
}

func (t *Traces) options() []otelgrpc.Option {
	return []otelgrpc.Option{
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool {
			return strings.HasPrefix(info.FullMethodName, tracedServices)
		}),
	}
}

// Tracer returns the tracer for spans inside the process, or nil if no traces are sent.
func (t *Traces) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("sheaf.dev/sheaf")
}

// Stop sends the remaining spans, for at most 3 s. It logs that spans cannot be sent, and returns no error, because an
// unavailable collector is not an error of the process.
func (t *Traces) Stop() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tracesStopTime)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.logger.Warn("the last traces are not sent", "error", err)
	}
}
