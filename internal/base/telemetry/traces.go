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

// Process is who sends traces. What is empty is not told.
type Process struct {
	Service string // service.name, unless OTEL_SERVICE_NAME says another one
	Version string // service.version
	Store   string // sheaf.store
	Shard   string // sheaf.shard
}

// Traces sends the spans of a process to an OpenTelemetry collector. A nil one is that of a process that sends none:
// its methods do nothing. Safe for concurrent use.
type Traces struct {
	provider *sdktrace.TracerProvider
	logger   *slog.Logger
}

// tracesStopTime bounds the sending of the last spans: the end of a process does not wait longer for a collector.
const tracesStopTime = 3 * time.Second

// tracedServices begins the names of the methods that have spans: those that callers call. The streams between shards
// last for as long as the shards, and health is asked for all the time.
const tracedServices = "/sheaf.record.v1."

// StartTraces begins to send traces where the standard variables of OpenTelemetry ask for it (an endpoint of OTLP is
// set, and neither OTEL_SDK_DISABLED nor OTEL_TRACES_EXPORTER speaks against it); else it gives nil. It does not wait
// for the collector: what cannot be sent is logged and dropped. The error is that of variables that cannot be followed.
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
	// The provider reads OTEL_TRACES_SAMPLER and the limits of spans and batches by itself.
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

// ServerOptions are those of a gRPC server whose calls are traced.
func (t *Traces) ServerOptions() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(t.options()...))}
}

// DialOptions are those of a connection on which calls carry the trace on.
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

// Tracer is for spans inside the process; nil where no traces are sent.
func (t *Traces) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("sheaf.dev/sheaf")
}

// Stop sends what is left, for at most 3 s. What cannot be sent is logged: a collector that is away fails no process.
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
