// Package recordgrant reconciles RecordGrants and RecordTenants. It compiles the grants and tenants of a store into a
// table in etcd, by which the store's gateways and shards decide which calls are allowed. See
// docs/adr/0041-grants-decide-at-gateways-and-shards.md.
package recordgrant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/security/access"
)

// Permissions, separate from the type's comment because controller-gen ignores markers there. Every ServiceAccount
// may read the keys of ServiceAccounts (the ClusterRole system:service-account-issuer-discovery).
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordgrants;recordstores,verbs=list;watch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordgrants/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch

const (
	// reasonStoreUnknown means that no store has this name.
	reasonStoreUnknown = "StoreUnknown"
	// reasonRefused means that the object would make the table invalid, by its content or its size.
	reasonRefused = "Refused"
)

// Tables reads and writes the grant tables of stores. The context bounds each call.
type Tables interface {
	// Table reads the table of a store; text is nil if there is none. Pass the revision to PutTable.
	Table(ctx context.Context, store *v1alpha1.RecordStore) (text []byte, revision int64, err error)
	// PutTable replaces the table of the given revision. If the current revision is a different one, it returns
	// placement.ErrAccessChanged.
	PutTable(ctx context.Context, store *v1alpha1.RecordStore, text []byte, revision int64) error
}

// keysAgain is the time after which the keys of ServiceAccounts are read again. They may change when the API server
// restarts with another configuration.
const keysAgain = 30 * time.Minute

// Reconciler keeps the grant tables of stores up to date with their RecordGrants. Each store has a table. Without a
// RecordGrant, only administrators with a certificate may do anything.
type Reconciler struct {
	Client client.Client
	Tables Tables
	// Keys reads the issuer of the cluster's ServiceAccounts, and the keys that sign their tokens.
	Keys func(ctx context.Context) (access.Issuer, error)
	// IssuerKeys reads the JSON Web Key Set of a token issuer from its URL, within a time limit. caBundle holds the
	// certificate authorities that verify the server. If IssuerKeys is nil, no keys are read.
	IssuerKeys func(ctx context.Context, url, caBundle string) (json.RawMessage, error)
	// Live reads ConfigMaps with keys, which are not cached.
	Live client.Reader
	// Transports asks processes for the version of their table. If it is nil, no process is asked.
	Transports trust.TransportClient
	// Book receives the answers of the processes, from which the status of stores is derived. If Book is nil, the
	// answers are not recorded.
	Book *fleet.GrantBook
	Now  step.Clock

	asked    sync.Map // maps a store's UID to its *asked
	accounts accounts
	issuers  sync.Map // maps a store's name to its *storeIssuers
	sources  sync.Map // maps the origin of keys to their *keySource
	// unknown maps a pod's UID and an issuer to the pod's count of tokens signed by unknown keys.
	unknown sync.Map
	// unwritten maps a store's name to the time when writing its table first failed.
	unwritten sync.Map
}

// Reconcile reconciles the grants of the store with this name, whether or not the store exists.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var all v1alpha1.RecordGrantList
	if err := r.Client.List(ctx, &all, client.InNamespace(req.Namespace)); err != nil {
		return ctrl.Result{}, fmt.Errorf("list RecordGrants: %w", err)
	}
	var grants, leaving []v1alpha1.RecordGrant
	for _, g := range all.Items {
		switch {
		case g.Spec.StoreRef.Name != req.Name:
		case g.DeletionTimestamp != nil:
			leaving = append(leaving, g)
		default:
			grants = append(grants, g)
		}
	}
	tenants, err := r.tenants(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	version, refused, out := r.write(ctx, req.NamespacedName, grants, tenants)
	force, out := r.checkEnforced(ctx, req.NamespacedName, version, out)
	writes := r.tenantWrites(ctx, tenants, version, out)
	for i := range grants {
		of := out
		if own, is := refused[grants[i].Name]; is && out.IsComplete() {
			of = own
		} else if reason, lacks := r.lacksIssuer(req.NamespacedName, &grants[i]); lacks != "" && out.IsComplete() {
			of = step.Fail(reason, lacks)
		}
		writes = append(writes, func() error { return r.writeGrantStatus(ctx, &grants[i], version, of, force) })
	}
	for i := range leaving {
		writes = append(writes, func() error {
			return step.SayDeleting(ctx, r.Client, &leaving[i],
				func(g *v1alpha1.RecordGrant) *[]metav1.Condition { return &g.Status.Conditions })
		})
	}
	if err := writeAll(writes); err != nil {
		return ctrl.Result{}, err
	}
	return out.Result()
}

// writeAll writes statuses. If the API server refuses one status, writeAll still writes the others. After any other
// error, writeAll stops, because each further write could wait for an API server that is overloaded or does not answer.
func writeAll(writes []func() error) error {
	var failed []error
	for _, write := range writes {
		err := write()
		if err == nil {
			continue
		}
		failed = append(failed, err)
		var answer apierrors.APIStatus
		if !errors.As(err, &answer) || answer.Status().Code < 400 || answer.Status().Code >= 500 ||
			apierrors.IsTooManyRequests(err) {
			break
		}
	}
	return errors.Join(failed...)
}

// write updates the table of a store from its grants and tenants. It returns, by name, the grants that would make the
// table invalid. They do not prevent the other grants from being in the table.
func (r *Reconciler) write(ctx context.Context, key types.NamespacedName, grants []v1alpha1.RecordGrant,
	tenants *tenants) (version int64, refused map[string]step.Outcome, out step.Outcome) {
	store := &v1alpha1.RecordStore{}
	err := r.Client.Get(ctx, key, store)
	switch {
	case apierrors.IsNotFound(err) || err == nil && store.DeletionTimestamp != nil:
		return 0, nil, step.Fail(reasonStoreUnknown, fmt.Sprintf(
			"there is no RecordStore %s in this namespace: make it, or name another one", key.Name))
	case err != nil:
		return 0, nil, step.Retry(fmt.Errorf("read RecordStore %s: %w", key.Name, err))
	case store.Status.StoreUID == "" || !store.Status.PlacementInitialized:
		return 0, nil, step.Wait("StoreStarts", "the RecordStore has no placement yet", step.PauseShort)
	}
	text, revision, err := r.table(ctx, store)
	if err != nil {
		return 0, nil, step.Retry(fmt.Errorf("read the table of grants: %w", err))
	}
	there := &access.Table{}
	if text != nil {
		if there, err = access.ParseTable(text); err != nil {
			return 0, nil, step.Fail("TableForeign", fmt.Sprintf(
				"the table of grants in etcd cannot be read, and is left alone: %v",
				err))
		}
	}
	issuer, err := r.serviceAccounts(ctx)
	if err != nil {
		return 0, nil, step.Retry(fmt.Errorf("read the keys of ServiceAccounts from the API server: %w", err))
	}
	next := compile(key.Namespace, key.Name, grants, issuer)
	next.Tenants, tenants.refused = tenantsOf(store.Spec.Groups.Routing, tenants.all)
	next.Issuers = append(next.Issuers, r.tokenIssuers(ctx, store, there, issuer.URL)...)
	dropUnknown(next)
	next.Version = there.Version + 1
	refused = map[string]step.Outcome{}
	encoded, err := next.Encode()
	if err != nil {
		refused = keepLast(next, there, tenants.refused)
	}
	if tooLarge := fit(next, grants, refused); tooLarge || err != nil {
		encoded, err = next.Encode()
	}
	if there.Version > 0 && isSame(next, there) {
		return there.Version, refused, step.Complete().Again(keysAgain)
	}
	if err != nil {
		return 0, nil, step.Fail("TableRefused", fmt.Sprintf(
			"the RecordGrants and RecordTenants of the store make no table, the last one stays in use: %v", err))
	}
	putting, cancel := context.WithTimeout(ctx, fleet.EtcdPatience)
	defer cancel()
	if err := r.Tables.PutTable(putting, store, encoded, revision); err != nil {
		return 0, nil, step.Retry(fmt.Errorf("write the table of grants: %w", err))
	}
	step.LogNews(ctx, step.News{Reason: "TableWritten", Action: "Write", Object: store,
		Message: fmt.Sprintf("table %d of grants is written, with %s and %s", next.Version,
			step.Count(len(next.Grants), "grant", "grants"), step.Count(len(next.Tenants), "tenant", "tenants"))})
	return next.Version, refused, step.Complete().Again(keysAgain)
}

func (r *Reconciler) table(ctx context.Context, store *v1alpha1.RecordStore) (text []byte, revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, fleet.EtcdPatience)
	defer cancel()
	return r.Tables.Table(ctx, store)
}

// compiled reports the result for an object in its conditions, and returns whether the object is in the table.
func compiled(conditions *[]metav1.Condition, generation, version int64, out step.Outcome) bool {
	words := fmt.Sprintf("in table %d of grants", version)
	step.Summarize(conditions, generation, out, words)
	if !out.IsComplete() {
		step.SetFalse(conditions, generation, v1alpha1.ConditionCompiled, out.Reason(), out.Message())
		return false
	}
	step.SetTrue(conditions, generation, v1alpha1.ConditionCompiled, "Compiled", words)
	return true
}

// writeGrantStatus writes the status of a grant. The argument force says whether the processes use the newest table,
// and is nil if this is not known yet. A grant that is not in the table is not in force, no matter which table the
// processes use.
func (r *Reconciler) writeGrantStatus(ctx context.Context, g *v1alpha1.RecordGrant, version int64, out step.Outcome,
	force *fleet.GrantsInForce) error {
	after := g.DeepCopy()
	s := &after.Status
	s.ObservedGeneration = after.Generation
	if compiled(&s.Conditions, after.Generation, version, out) {
		s.TableVersion = version
	}
	if out.IsStalled() {
		force = &fleet.GrantsInForce{Reason: out.Reason(), Message: out.Message()}
	}
	if force != nil {
		step.SetCondition(&s.Conditions, after.Generation, v1alpha1.ConditionInForce, force.Status(), force.Reason,
			force.Message)
	}
	_, err := step.WriteStatus(ctx, r.Client, g, after)
	return client.IgnoreNotFound(err)
}

// SetupWithManager watches RecordGrants and RecordTenants, and the creation and deletion of stores.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	ofGrant := step.Requests(func(g *v1alpha1.RecordGrant) types.NamespacedName {
		return types.NamespacedName{Namespace: g.Namespace, Name: g.Spec.StoreRef.Name}
	})
	ofTenant := step.Requests(func(t *v1alpha1.RecordTenant) types.NamespacedName {
		return types.NamespacedName{Namespace: t.Namespace, Name: t.Spec.StoreRef.Name}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("recordgrant").
		Watches(&v1alpha1.RecordGrant{}, ofGrant, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.RecordTenant{}, ofTenant, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.RecordStore{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(identified)).
		// An etcd that does not answer delays only its own store.
		WithOptions(controller.Options{MaxConcurrentReconciles: 4, RateLimiter: step.Failures()}).
		Complete(r)
}

// identified is a predicate that passes stores that are created or deleted, and stores whose UID, placement or
// transport changes.
var identified = step.Changed(func(s *v1alpha1.RecordStore) any {
	return []any{s.Status.StoreUID, s.Status.PlacementInitialized, s.Generation, transportOf(s),
		s.DeletionTimestamp == nil}
})
