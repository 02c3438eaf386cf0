package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/base/descriptors"
	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// serveHTTP serves pages at an address, in the background until stop is called. It serves nothing if the address is
// empty. pages returns the pages, of which one shows the metrics in the registry. certificates may be nil.
func serveHTTP(ctx context.Context, address string, pages func(*prometheus.Registry) http.Handler,
	certificates *certs.Source, log *slog.Logger) (stop func() error, err error) {
	if address == "" {
		return func() error { return nil }, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for HTTP on %s: %w (give another --http)", address, err)
	}
	registry := telemetry.NewRegistry(version)
	if certificates != nil {
		registry.MustRegister(certificates.Collectors()...)
	}
	server := telemetry.Server(certs.Handle(certificates, nil, pages(registry)), registry)
	served := make(chan error, 1)
	go func() { served <- server.Serve(descriptors.Listen(listener, log)) }()
	return func() error {
		err := server.Close()
		if s := <-served; !errors.Is(s, http.ErrServerClosed) {
			err = errors.Join(err, s)
		}
		return err
	}, nil
}

// pages returns the HTTP pages of a process, and registers its metrics. /readyz fails while the process is not
// archiving.
func pages(p *process, metrics *prometheus.Registry) http.Handler {
	metrics.MustRegister(series{p})
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+archiving.Path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p.report()) // fails only if the caller has disconnected
	})
	telemetry.Pages(mux, metrics, func(context.Context) error {
		switch r := p.report(); {
		case r.State == archiving.Archiving:
			return nil
		case r.Trouble != nil:
			return fmt.Errorf("%s: %s", r.State, r.Trouble.Message)
		default:
			return fmt.Errorf("%s", r.State)
		}
	})
	return mux
}

// series exports the report of a process to Prometheus.
type series struct{ p *process }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sheaf_archive_"+name, help, labels, nil)
}

var (
	descThrough = describe("through_timestamp_seconds",
		"Everything acknowledged before this time, in all groups, is archived. Absent while that is not known.")
	descLag     = describe("lag_seconds", "How long ago that is. Absent while that is not known.")
	descLast    = describe("last_object_timestamp_seconds", "When the bucket acknowledged an object last.")
	descObjects = describe("objects_total", "Objects that the bucket has acknowledged.")
	descBytes   = describe("bytes_total", "Bytes of objects that the bucket has acknowledged.")
	descErrors  = describe("errors_total",
		"Errors by what was tried: create, read, damage, source (the store did not answer), gap.", "reason")
	descBucket = describe("bucket_errors_total",
		"Failed calls to the bucket, by reason: Away, Busy, Full, Credentials, Forbidden, NoBucket, Late, Broken, Other.",
		"reason")
	descHoles   = describe("holes", "Holes in the history of all groups.")
	descGroups  = describe("groups", "Groups that are archived.")
	descWaiting = describe("waiting_groups", "Groups whose first copy is not complete.")
	descPending = describe("pending_bytes", "News in memory that are in no object yet.")
	descDrill   = describe("drill_timestamp_seconds", "When the newest drill began. Absent if there is none.")
	descProven  = describe("drill_proven_timestamp_seconds",
		"When the newest drill began that has proven that the archive can be restored. Absent if none has.")
	descDiffers = describe("drill_differences", "Differences that the newest drill has found. Absent if there is none.")
	descState   = describe("state", "1 for what the archiver does: starting, archiving, waiting (for the next attempt), "+
		"ended (another archiver has taken over).", "state")
)

// Describe implements prometheus.Collector.
func (s series) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descThrough, descLag, descLast, descObjects, descBytes, descErrors, descBucket,
		descHoles, descGroups, descWaiting, descPending, descDrill, descProven, descDiffers, descState} {
		to <- d
	}
	describeUpkeep(to)
}

// Collect implements prometheus.Collector.
func (s series) Collect(to chan<- prometheus.Metric) {
	r := s.p.report()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	if r.ArchivedThrough != nil {
		send(descThrough, prometheus.GaugeValue, float64(r.ArchivedThrough.UnixMilli())/1000)
		send(descLag, prometheus.GaugeValue, *r.LagSeconds)
	}
	if r.LastObject != nil {
		send(descLast, prometheus.GaugeValue, float64(r.LastObject.UnixMilli())/1000)
	}
	send(descObjects, prometheus.CounterValue, float64(r.Objects))
	send(descBytes, prometheus.CounterValue, float64(r.Bytes))
	for reason, n := range r.Errors {
		send(descErrors, prometheus.CounterValue, float64(n), reason)
	}
	for reason, n := range r.BucketErrors {
		send(descBucket, prometheus.CounterValue, float64(n), reason)
	}
	send(descHoles, prometheus.GaugeValue, float64(r.Holes))
	send(descGroups, prometheus.GaugeValue, float64(r.Groups))
	send(descWaiting, prometheus.GaugeValue, float64(r.Waiting))
	send(descPending, prometheus.GaugeValue, float64(r.PendingBytes))
	if d := r.Drill; d != nil {
		send(descDrill, prometheus.GaugeValue, float64(d.Time.UnixMilli())/1000)
		send(descDiffers, prometheus.GaugeValue, float64(d.Differing))
		if d.Proven != nil {
			send(descProven, prometheus.GaugeValue, float64(d.Proven.UnixMilli())/1000)
		}
	}
	for _, state := range []archiving.State{archiving.Starting, archiving.Archiving, archiving.Waiting, archiving.Ended} {
		is := 0.0
		if state == r.State {
			is = 1
		}
		send(descState, prometheus.GaugeValue, is, string(state))
	}
	if r.Upkeep != nil {
		collectUpkeep(r.Upkeep, send)
	}
}
