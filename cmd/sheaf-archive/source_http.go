package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// sourcePage holds the report of the command source. Safe for concurrent use.
type sourcePage struct {
	mu     sync.Mutex
	report archiving.SourceReport
}

func newSourcePage(into uuid.UUID) *sourcePage {
	return &sourcePage{report: archiving.SourceReport{Version: version, State: archiving.Starting, Store: into.String()}}
}

// serves notes what the source serves from now on.
func (p *sourcePage) serves(r *restore.Restore, when time.Time) {
	header, groups := r.Archive(), r.Groups()
	report := archiving.SourceReport{Version: version, State: archiving.Serving, Store: r.Store().String(),
		Time: new(when.UTC()), Routing: header.Routing, HashGroups: header.Groups, Groups: len(groups)}
	for _, g := range groups {
		if g.Err != nil {
			report.Refused = append(report.Refused, archiving.RefusedGroup{Group: cmp.Or(g.Name, g.Source.String()),
				Error: strings.ReplaceAll(g.Err.Error(), "\n", "; ")})
		}
	}
	slices.SortFunc(report.Refused, func(a, b archiving.RefusedGroup) int { return strings.Compare(a.Group, b.Group) })
	report.RefusedGroups = len(report.Refused)
	report.Refused = report.Refused[:min(len(report.Refused), archiving.RefusedMax)]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report = report
}

func (p *sourcePage) now() archiving.SourceReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.report
}

// serve serves the pages at an address, in the background until stop is called. It serves nothing if the address is
// empty. certificates may be nil.
func (p *sourcePage) serve(ctx context.Context, address string, certificates *certs.Source, log *slog.Logger) (
	stop func() error, err error) {
	return serveHTTP(ctx, address, func(registry *prometheus.Registry) http.Handler {
		mux := http.NewServeMux()
		mux.HandleFunc("GET "+archiving.Path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(p.now()) // fails only if the caller has disconnected
		})
		telemetry.Pages(mux, registry, func(context.Context) error {
			if p.now().State != archiving.Serving {
				return errors.New("the source reads which groups the archive has")
			}
			return nil
		})
		return mux
	}, certificates, log)
}
