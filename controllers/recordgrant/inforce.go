package recordgrant

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
)

const (
	// behindGrace is how long a process may use an outdated table before this is reported. A process uses a new table
	// within seconds, and a process that is starting does not answer at first.
	behindGrace = 5 * time.Second
	// These are the pauses before the processes are queried again: askSoon while a process has been behind for less
	// than behindGrace, askAgain while one has been behind for longer, and askRest otherwise.
	askSoon  = 2 * time.Second
	askAgain = 30 * time.Second
	askRest  = 2 * time.Minute
	// behindNamed is the maximum number of processes that a message names.
	behindNamed = 5
)

// Reasons of the conditions InForce and GrantsInForce.
const (
	reasonInForce          = "InForce"
	reasonBehind           = "ProcessesBehind"
	reasonPlaintext        = "StoreSpeaksPlaintext"
	reasonPlaintextAllowed = "PlaintextAllowed"
)

// asked holds the processes' previous responses for one store, so that a condition is written only if it changes.
type asked struct {
	version int64
	behind  map[types.UID]time.Time // maps a pod's UID to the time when its process fell behind
}

// checkEnforced determines whether a store's processes enforce the current table, and records the result in the Book.
// The argument out is the outcome of writing the table. The first result is nil if it is not known yet whether the
// table is enforced. The returned outcome says after how long the processes must be queried again.
func (r *Reconciler) checkEnforced(ctx context.Context, key types.NamespacedName, version int64, out step.Outcome) (
	force *fleet.GrantsInForce, _ step.Outcome) {
	switch {
	case out.IsComplete():
		r.unwritten.Delete(key)
		what, known, again := r.inForce(ctx, key, version)
		if known {
			force = &what
		}
		out = out.Again(soonest(min(out.After(), again), r.issuersPause(key)))
		r.reportIssuers(key)
	case out.Reason() == reasonStoreUnknown:
		r.unwritten.Delete(key)
		if r.Book != nil {
			r.Book.Forget(key)
		}
	default:
		force = r.notWritten(key, out)
	}
	if force != nil && r.Book != nil {
		r.Book.Put(key, *force)
	}
	return force, out
}

// notWritten returns the finding about the grants of a store whose table could not be written. Earlier answers of the
// processes do not show whether later changes are in force. After an error that may be temporary, notWritten returns
// nil for behindGrace, and then Unknown. It also returns nil while the store starts.
func (r *Reconciler) notWritten(key types.NamespacedName, out step.Outcome) *fleet.GrantsInForce {
	if !out.IsStalled() && out.Err() == nil {
		return nil
	}
	first, _ := r.unwritten.LoadOrStore(key, r.Now.Time())
	since, _ := first.(time.Time)
	if !out.IsStalled() && r.Now.Time().Sub(since) < behindGrace {
		return nil
	}
	return &fleet.GrantsInForce{Unknown: !out.IsStalled(), Reason: out.Reason(), Message: fmt.Sprintf(
		"since %s, the table may lack changes of RecordGrants, including deletions: %s",
		since.UTC().Format(time.RFC3339), out.Message())}
}

// inForce asks the processes of a store for the version of their table. The result known is false if it cannot be
// determined yet whether the grants are in force. The result again is the pause before the processes have to be asked
// again.
func (r *Reconciler) inForce(ctx context.Context, key types.NamespacedName, version int64) (what fleet.GrantsInForce,
	known bool, again time.Duration) {
	var store v1alpha1.RecordStore
	if r.Transports == nil || r.Client.Get(ctx, key, &store) != nil {
		return what, false, askRest
	}
	switch transport := transportOf(&store); transport {
	case "":
		return what, false, askAgain
	case v1alpha1.TransportPlaintext:
		return fleet.GrantsInForce{Reason: reasonPlaintext,
				Message: "the store speaks plaintext: its callers are not known, and grants count for nothing. " +
					"Set spec.tls.mode of the RecordStore to Optional, and to Required when its callers have certificates or tokens"},
			true, askRest
	}
	behind, processes, err := r.behind(ctx, &store, version)
	if err != nil || processes == 0 { // no process reported a table
		return what, false, askAgain
	}
	var words []string
	again = askRest
	for _, b := range behind {
		if r.Now.Time().Sub(b.since) < behindGrace {
			again = askSoon
			continue
		}
		words = append(words, fmt.Sprintf("%s %s, since %s", b.pod, b.words, b.since.UTC().Format(time.RFC3339)))
	}
	switch {
	case len(words) > 0:
		more := ""
		if n := len(words) - behindNamed; n > 0 {
			words, more = words[:behindNamed], ", and "+step.Count(n, "other", "others")
		}
		return fleet.GrantsInForce{Reason: reasonBehind, Message: fmt.Sprintf(
			"not all processes decide by table %d of grants: %s%s. See whether they reach etcd, and their log",
			version, strings.Join(words, "; "), more)}, true, min(again, askAgain)
	case len(behind) > 0:
		return what, false, again
	case transportOf(&store) == v1alpha1.TransportBoth:
		return fleet.GrantsInForce{Reason: reasonPlaintextAllowed,
			Message: "the store takes plaintext, too: calls over it are let in and not decided about. " +
				"Set spec.tls.mode of the RecordStore to Required when its callers have certificates or tokens"}, true, again
	}
	return fleet.GrantsInForce{Good: true, Reason: reasonInForce,
		Message: "every gateway and shard decides by the table of grants that the operator wrote last"}, true, again
}

// transportOf returns the transport of a store, or "" while the transport is not decided yet.
func transportOf(store *v1alpha1.RecordStore) v1alpha1.TLSTransport {
	switch {
	case store.Status.TLS == nil && store.Status.StoreUID == "":
		return ""
	case !workload.HasTLS(store):
		return v1alpha1.TransportPlaintext
	}
	return store.Status.TLS.Transport
}

// outdatedProcess describes a process that does not use the newest table.
type outdatedProcess struct {
	pod, words string
	since      time.Time
}

// decides reports whether the process in a pod decides which calls are allowed. Members of etcd and archivers do not
// decide this.
func decides(pod *corev1.Pod) bool {
	component := pod.Labels[v1alpha1.LabelComponent]
	return component == workload.ContainerGateway || component == workload.ContainerShard
}

// behind returns the processes of a store that use another version of the table, or report none, sorted by the names
// of their pods. It also returns the number of processes that were asked.
func (r *Reconciler) behind(ctx context.Context, store *v1alpha1.RecordStore, version int64) (out []outdatedProcess,
	processes int, err error) {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(store.Namespace),
		client.MatchingLabels{v1alpha1.LabelStore: store.Name}); err != nil {
		return nil, 0, fmt.Errorf("list the pods of store %s: %w", client.ObjectKeyFromObject(store), err)
	}
	decide := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !decides(&p) })
	slices.SortFunc(decide, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	last, _ := r.asked.Load(store.UID)
	before, _ := last.(*asked)
	rests := before != nil && before.version == version && len(before.behind) == 0
	next := &asked{version: version, behind: map[types.UID]time.Time{}}
	all := trust.Ask(ctx, r.Transports, decide, rests)
	for _, a := range all {
		r.reportedUnknown(client.ObjectKeyFromObject(store), a.Pod.UID, a.Report.UnknownKeys)
		var words string
		switch {
		case a.Err != nil:
			words = fmt.Sprintf("does not answer (%v)", a.Err)
		case a.Report.GrantsVersion == nil:
			words = "is of a version that does not tell"
		case *a.Report.GrantsVersion == 0:
			words = "has no table"
		case *a.Report.GrantsVersion != version:
			words = fmt.Sprintf("uses table %d", *a.Report.GrantsVersion)
		default:
			continue
		}
		since := r.Now.Time()
		if before != nil && !before.behind[a.Pod.UID].IsZero() {
			since = before.behind[a.Pod.UID]
		}
		next.behind[a.Pod.UID] = since
		out = append(out, outdatedProcess{a.Pod.Name, words, since})
	}
	r.asked.Store(store.UID, next)
	return out, len(all), nil
}
