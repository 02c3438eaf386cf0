package recordstore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/trust"
)

// reportedTransport summarizes the reports of a store's processes about their certificates.
type reportedTransport struct {
	at        time.Time
	running   string // identifies the processes that were asked
	reports   trust.Reports
	plaintext int32     // number of plaintext connections
	notAfter  time.Time // earliest expiry of a certificate in use; zero if none was reported
	first     string    // the pod whose certificate expires first
	trusts    string    // authorities that at least one process trusts
	// mode is the transport that all processes use. It is TransportBoth if they differ, and empty if no process runs.
	mode    v1alpha1.TLSTransport
	refused string          // the reason that the first process gives for refusing its files
	stale   map[string]bool // pods without the files that they were given
	changes bool            // this reconcile gave new files to the processes
}

// Pauses before all processes of a store are asked again when nothing has changed.
const (
	askPause     = 2 * time.Minute
	askPauseSome = 30 * time.Second // while some processes do not use their current files yet
)

// pause returns the time after which all processes are asked again even if nothing has changed.
func (h *reportedTransport) pause() time.Duration {
	if h.reports.UpToDate < h.reports.Processes {
		return askPauseSome
	}
	return askPause
}

// askTransport asks all running processes if a change is in progress, if different processes run than before, or if the
// last answers are older than the pause allows. Otherwise it keeps the last answers.
func (c *certificates) askTransport(ctx context.Context) error {
	store, seen, status := c.store, c.seen, c.store.Status.TLS
	var pods corev1.PodList
	err := c.List(ctx, &pods, client.InNamespace(store.Namespace),
		client.MatchingLabels{v1alpha1.LabelStore: store.Name})
	if err != nil {
		return fmt.Errorf("list the pods of store %s: %w", client.ObjectKeyFromObject(store), err)
	}
	running := trust.Running(pods.Items)
	rests := status.Phase == v1alpha1.TLSReady && status.Transport == trust.TransportOf(status.Mode) &&
		cmp.Or(specTLS(store).Rotate, status.Rotated) == status.Rotated
	if last, ok := c.last.Load(store.UID); ok && rests {
		if heard := last.(*reportedTransport); heard.running == running && c.now.Sub(heard.at) < heard.pause() {
			again := *heard
			again.changes = false
			seen.transport = &again
			return nil
		}
	}
	asked := trust.Ask(ctx, c.transports, pods.Items, rests)
	seen.transport = c.compare(asked)
	seen.transport.at, seen.transport.running = c.now, running
	c.last.Store(store.UID, seen.transport)
	return nil
}

// compare compares the reports of the processes with the files that they were given.
func (c *certificates) compare(asked []trust.Answer) *reportedTransport {
	status, out := c.store.Status.TLS, &reportedTransport{stale: map[string]bool{}}
	out.reports.Processes = len(asked)
	for _, a := range asked {
		lacks := a.NotYetUsed(status)
		// A process that reports no mode has no certificates.
		mode := cmp.Or(v1alpha1.TLSTransport(a.Report.Mode), v1alpha1.TransportPlaintext)
		if out.mode = cmp.Or(out.mode, mode); out.mode != mode {
			out.mode = v1alpha1.TransportBoth
		}
		if a.Err == nil {
			out.trusts = cmp.Or(out.trusts, a.Report.Bundle)
			out.plaintext += int32(max(0, min(a.Report.PlaintextConnections, 1<<30))) //nolint:gosec // bounded
			if end := a.Report.NotAfter; !end.IsZero() && (out.notAfter.IsZero() || end.Before(out.notAfter)) {
				out.notAfter, out.first = end, a.Pod.Name
			}
			if a.Report.Error != "" && out.refused == "" {
				out.refused = a.Pod.Name + ": " + a.Report.Error
			}
		}
		if lacks == "" {
			out.reports.UpToDate++
			newest, known := c.trust.NotAfter(c.store, a.Secret)
			if known && newest.Equal(a.Report.NotAfter) {
				out.reports.Renewed++
			} else if status.Phase == v1alpha1.TLSIssuing {
				lacks = "it does not use its newest certificate yet"
			}
		} else {
			out.stale[a.Pod.Name] = a.Err == nil
		}
		if lacks != "" && out.reports.Missing == "" {
			out.reports.Missing = a.Pod.Name + ": " + lacks
		}
	}
	return out
}
