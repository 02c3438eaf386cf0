package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"sheaf.dev/sheaf/internal/base/telemetry"
)

// stopTime is how long a server that ends waits for calls under way.
const stopTime = 5 * time.Second

// addServers adds the HTTP servers of metrics and of health to the manager, and opens their ports. Those of
// controller-runtime bound neither the number of connections nor the time in which a request has to arrive.
func (o *options) addServers(ctx context.Context, mgr ctrl.Manager) error {
	numbers, health := http.NewServeMux(), http.NewServeMux()
	numbers.Handle("/metrics", promhttp.HandlerFor(metrics.Registry,
		promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	for _, path := range []string{"/healthz", "/readyz"} {
		health.Handle(path, healthz.CheckHandler{Checker: healthz.Ping})
	}
	for _, s := range []struct {
		name, flag, address string
		pages               http.Handler
	}{
		{"metrics", "--metrics-bind-address", o.metricsAddress, numbers},
		{"health", "--health-probe-bind-address", o.healthAddress, health},
	} {
		if s.address == "" || s.address == "0" {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.address)
		if err != nil {
			return fmt.Errorf("%s: %w", s.flag, err)
		}
		registry := prometheus.WrapRegistererWith(prometheus.Labels{"port": s.name}, metrics.Registry)
		if err := mgr.Add(&manager.Server{Name: s.name, Server: telemetry.Server(s.pages, registry), Listener: listener,
			ShutdownTimeout: new(stopTime)}); err != nil {
			return err
		}
	}
	return nil
}
