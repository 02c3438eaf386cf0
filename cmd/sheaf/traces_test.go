package main

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/test/etcdserver"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// collector receives spans by OTLP over gRPC, as an OpenTelemetry collector does.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []sentSpan
}

// sentSpan is a span together with the description of its process.
type sentSpan struct {
	*tracev1.Span
	of map[string]string
}

// Export implements the TraceService of OTLP.
func (c *collector) Export(_ context.Context, in *collectorv1.ExportTraceServiceRequest) (
	*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range in.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.spans = append(c.spans, sentSpan{span, textAttributes(of.GetResource().GetAttributes())})
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// textAttributes returns the attributes that have text values.
func textAttributes(attributes []*commonv1.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range attributes {
		out[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return out
}

// children returns the spans of a trace whose parent is the given span.
func (c *collector) children(trace, parent []byte) (below []sentSpan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if string(s.GetTraceId()) == string(trace) && string(s.GetParentSpanId()) == string(parent) {
			below = append(below, s)
		}
	}
	return below
}

// startCollector runs a collector and returns its URL.
func startCollector(t *testing.T) (*collector, string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	c, server := &collector{}, grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return c, "http://" + listener.Addr().String()
}

// TestTraces checks that a put by the Go client is one trace through the client, the gateway, the shard and the commit
// of its group, and that a get is one trace through the client, the gateway and the shard. Each span identifies the
// process that sends it.
func TestTraces(t *testing.T) {
	collector, url := startCollector(t)
	server, err := etcdserver.Start(t.TempDir())
	must(t, err)
	defer server.Close()
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url, "OTEL_BSP_SCHEDULE_DELAY=20"}
	common := []string{"--etcd", strings.Join(server.Endpoints(), ","), "--store", "quotes"}
	gateway := serveProgram(t, env, sheafBinary, append([]string{"gateway", "--listen", loopback.Free(t), "--http",
		loopback.Free(t), "--create", "--groups", "1"}, common...)...)
	gateway.server, gateway.http = gateway.cmd.Args[3], gateway.cmd.Args[5]
	gateway.waitReady(t) // a shard exits if the gateway has not created the store yet
	shard := serveProgram(t, env, sheafBinary, append([]string{"shard", "--name", "a", "--dir", t.TempDir(), "--listen",
		loopback.Free(t), "--http", loopback.Free(t)}, common...)...)
	shard.http = shard.cmd.Args[9]
	eventually(t, func() bool {
		return sheaf(t, strings.NewReader("x"), "put", "1", "--server", gateway.server).Code == 0
	})

	own := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(own))
	c, err := client.New(client.Config{Addresses: []string{gateway.server},
		DialOptions: []grpc.DialOption{grpc.WithStatsHandler(
			otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(provider),
				otelgrpc.WithPropagators(propagation.TraceContext{})))}})
	must(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, call := range []struct {
		method string
		do     func(ctx context.Context) error
		commit bool
	}{
		{"Put", func(ctx context.Context) error {
			_, err := c.Put(ctx, client.Key{ID: 7}, []byte("seven"), nil)
			return err
		}, true},
		{"Get", func(ctx context.Context) error { _, err := c.Get(ctx, client.Key{ID: 7}, nil); return err }, false},
	} {
		ctx, root := provider.Tracer("test").Start(ctx, "a caller")
		must(t, call.do(ctx))
		root.End()
		trace := root.SpanContext().TraceID()
		parent := []byte(nil)
		for _, s := range own.GetSpans() {
			if s.SpanContext.TraceID() == trace && s.Parent.SpanID() == root.SpanContext().SpanID() {
				id := s.SpanContext.SpanID()
				parent = id[:]
			}
		}
		steps := []struct {
			name, service, shard string
			kind                 tracev1.Span_SpanKind
		}{
			{"sheaf.record.v1.RecordService/" + call.method, "sheaf-gateway", "", tracev1.Span_SPAN_KIND_SERVER},
			{"sheaf.record.v1.RecordService/" + call.method, "sheaf-gateway", "", tracev1.Span_SPAN_KIND_CLIENT},
			{"sheaf.record.v1.RecordService/" + call.method, "sheaf-shard", "a", tracev1.Span_SPAN_KIND_SERVER},
			{"commit", "sheaf-shard", "a", tracev1.Span_SPAN_KIND_INTERNAL},
			{"sync", "sheaf-shard", "a", tracev1.Span_SPAN_KIND_INTERNAL},
		}
		if !call.commit {
			steps = steps[:3]
		}
		var group string
		for _, step := range steps {
			var below []sentSpan
			eventually(t, func() bool { below = collector.children(trace[:], parent); return len(below) > 0 })
			s := below[0]
			if len(below) != 1 || s.GetName() != step.name || s.GetKind() != step.kind || s.of["service.name"] != step.service ||
				s.of["sheaf.shard"] != step.shard || s.of["sheaf.store"] != "quotes" || s.of["service.version"] == "" {
				t.Fatalf("%s: %d spans below %s, the first is %s (%v) of %v; want %+v", call.method, len(below),
					hex.EncodeToString(parent), s.GetName(), s.GetKind(), s.of, step)
			}
			parent, group = s.GetSpanId(), textAttributes(s.GetAttributes())["sheaf.group"]
		}
		if call.commit && group != "0" {
			t.Errorf("the sync is of group %q", group)
		}
	}
	for _, p := range []*process{gateway, shard} {
		listen := p.cmd.Args[slices.Index(p.cmd.Args, "--listen")+1]
		conn, err := grpc.NewClient(listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(t, err)
		_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
		must(t, errors.Join(err, conn.Close()))
		if code := p.stop(t); code != 0 {
			t.Errorf("exit code %d: %s", code, p.stderr)
		}
	}
	collector.mu.Lock()
	defer collector.mu.Unlock()
	for _, s := range collector.spans {
		if s.GetName() != "commit" && s.GetName() != "sync" && !strings.HasPrefix(s.GetName(), "sheaf.record.v1.") {
			t.Errorf("a span of %s: those of health and of peers never end, or are of no use", s.GetName())
		}
	}
}

// TestTracesAreSentOnRequest checks that no spans are sent if no endpoint is set or if the environment variables
// disable tracing. If the variables ask for a protocol that the program does not support, it must exit with an error.
func TestTracesAreSentOnRequest(t *testing.T) {
	collector, url := startCollector(t)
	endpoint := "OTEL_EXPORTER_OTLP_ENDPOINT=" + url
	for name, env := range map[string][]string{
		"no endpoint": {"OTEL_BSP_SCHEDULE_DELAY=20"}, "disabled": {endpoint, "OTEL_SDK_DISABLED=true"},
		"none":    {endpoint, "OTEL_TRACES_EXPORTER=none"},
		"sampler": {endpoint, "OTEL_TRACES_SAMPLER=always_off"},
	} {
		p := serveProgram(t, env, sheafBinary, "dev", "--listen", loopback.Free(t), "--http", "", "--shards", "1", "--groups",
			"1", "--dir", t.TempDir())
		eventually(t, func() bool {
			return sheaf(t, strings.NewReader("x"), "put", "1", "--server", p.cmd.Args[3]).Code == 0
		})
		if code := p.stop(t); code != 0 {
			t.Errorf("%s: exit code %d: %s", name, code, p.stderr)
		}
		collector.mu.Lock()
		n := len(collector.spans)
		collector.mu.Unlock()
		if n != 0 {
			t.Errorf("%s: %d spans were sent", name, n)
		}
	}
	p := serveProgram(t, []string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}, sheafBinary, "dev", "--listen",
		loopback.Free(t), "--http", "", "--dir", t.TempDir())
	<-p.ended
	if code := p.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.stderr.String(), "http/protobuf") {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
}
