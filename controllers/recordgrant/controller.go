// Package recordgrant reconciles RecordGrants and RecordTenants: those of a store are compiled into the table in etcd
// by which its gateways and shards decide who may do what, and how much. See
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
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/security/access"
)

// Rights, apart from the type's comment: controller-gen does not see those that stand in one. The keys of
// ServiceAccounts every ServiceAccount may read (the ClusterRole system:service-account-issuer-discovery).
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordgrants;recordstores,verbs=list;watch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordgrants/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch

// ErrTableChanged says that somebody else has written the table of grants meanwhile.
var ErrTableChanged = errors.New("the table of grants was changed meanwhile")

// reasonStoreUnknown: there is no store of the name.
const reasonStoreUnknown = "StoreUnknown"

// Tables are the tables of grants of stores. Calls are bounded by their context.
type Tables interface {
	// Table reads that of a store; nil: there is none. The revision is for PutTable.
	Table(ctx context.Context, store *v1alpha1.RecordStore) (text []byte, revision int64, err error)
	// PutTable writes one in the place of that of a revision, else it answers ErrTableChanged.
	PutTable(ctx context.Context, store *v1alpha1.RecordStore, text []byte, revision int64) error
}

// keysAgain is how often the keys of ServiceAccounts are read: the API server may have new ones after it was started
// with another configuration.
const keysAgain = 30 * time.Minute

// Reconciler keeps the tables of grants of stores as their RecordGrants say. Each store has one: where there is no
// RecordGrant, nobody may do anything, but administrators by certificate.
type Reconciler struct {
	Client client.Client
	Tables Tables
	// Keys reads the issuer of the cluster's ServiceAccounts, with the keys of their tokens.
	Keys func(ctx context.Context) (access.Issuer, error)
	// IssuerKeys reads the JSON Web Key Set of an issuer of tokens, by its URL and the authorities that vouch for it, in
	// bounded time; nil: none are read.
	IssuerKeys func(ctx context.Context, url, caBundle string) (json.RawMessage, error)
	// Live reads ConfigMaps with keys, which are not cached.
	Live client.Reader
	// Transports asks processes by which table they decide; nil: nobody is asked.
	Transports fleet.TransportAsker
	// Book takes what they said, for the status of stores; nil: nobody reads it.
	Book *fleet.GrantBook
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	asked    sync.Map // of a store's UID: *asked
	accounts accounts
	issuers  sync.Map // of a store's name: *storeIssuers
	sources  sync.Map // of where keys come from: *keySource
	unknown  sync.Map // of a pod's UID and an issuer: tokens by unknown keys that it has counted
}

// Reconcile is about one store, by its name, whether there is one or not.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var all v1alpha1.RecordGrantList
	if err := r.Client.List(ctx, &all, client.InNamespace(req.Namespace)); err != nil {
		return ctrl.Result{}, fmt.Errorf("list RecordGrants: %w", err)
	}
	var grants []v1alpha1.RecordGrant
	for i := range all.Items {
		if g := &all.Items[i]; g.Spec.StoreRef.Name == req.Name && g.DeletionTimestamp == nil {
			grants = append(grants, *g)
		}
	}
	tenants, err := r.tenants(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	version, out := r.write(ctx, req.NamespacedName, grants, tenants)
	var force *fleet.GrantsInForce
	if out.IsComplete() {
		what, known, again := r.inForce(ctx, req.NamespacedName, version)
		if known {
			force = &what
		}
		if known && r.Book != nil {
			r.Book.Put(req.NamespacedName, what)
		}
		out = out.Again(soonest(min(out.After(), again), r.issuersPause(req.NamespacedName)))
		r.tellIssuers(req.NamespacedName)
	} else if out.Reason() == reasonStoreUnknown && r.Book != nil {
		r.Book.Forget(req.NamespacedName)
	}
	for i := range grants {
		of := out
		if lacks := r.lacksIssuer(req.NamespacedName, &grants[i]); lacks != "" && out.IsComplete() {
			of = step.Fail("IssuerUnknown", lacks)
		}
		if err := r.tell(ctx, &grants[i], version, of, force); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.tellTenants(ctx, tenants, version, out); err != nil {
		return ctrl.Result{}, err
	}
	return out.Result()
}

// write makes the table of a store as its grants and tenants say.
func (r *Reconciler) write(ctx context.Context, key types.NamespacedName, grants []v1alpha1.RecordGrant,
	tenants *tenants) (version int64, out step.Outcome) {
	store := &v1alpha1.RecordStore{}
	err := r.Client.Get(ctx, key, store)
	switch {
	case apierrors.IsNotFound(err) || err == nil && store.DeletionTimestamp != nil:
		return 0, step.Fail(reasonStoreUnknown, fmt.Sprintf(
			"there is no RecordStore %s in this namespace: make it, or name another one", key.Name))
	case err != nil:
		return 0, step.Retry(fmt.Errorf("read RecordStore %s: %w", key.Name, err))
	case store.Status.StoreUID == "" || !store.Status.PlacementInitialized:
		return 0, step.Wait("StoreStarts", "the RecordStore has no placement yet", step.PauseShort)
	}
	text, revision, err := r.table(ctx, store)
	if err != nil {
		return 0, step.Retry(fmt.Errorf("read the table of grants: %w", err))
	}
	there := &access.Table{}
	if text != nil {
		if there, err = access.ParseTable(text); err != nil {
			return 0, step.Fail("TableForeign", fmt.Sprintf("the table of grants in etcd cannot be read, and is left alone: %v",
				err))
		}
	}
	issuer, err := r.serviceAccounts(ctx)
	if err != nil {
		return 0, step.Retry(fmt.Errorf("read the keys of ServiceAccounts from the API server: %w", err))
	}
	next := compile(key.Namespace, key.Name, grants, issuer)
	next.Tenants = tenants.compile(store.Spec.Groups.Routing)
	next.Issuers = append(next.Issuers, r.tokenIssuers(ctx, store, there, issuer.URL)...)
	dropUnknown(next)
	if next.Version = there.Version; next.Version > 0 && isSame(next, there) {
		return there.Version, step.Complete().Again(keysAgain)
	}
	next.Version++
	encoded, err := next.Encode()
	if err != nil {
		return 0, step.Fail("TableRefused", fmt.Sprintf(
			"the RecordGrants and RecordTenants of the store make no table, the last one stays in use: %v", err))
	}
	if err := r.putTable(ctx, store, encoded, revision); err != nil {
		return 0, step.Retry(fmt.Errorf("write the table of grants: %w", err))
	}
	step.LogNews(ctx, step.News{Reason: "TableWritten", Action: "Write", Object: store,
		Message: fmt.Sprintf("table %d of grants is written, with %d grants and %d tenants", next.Version, len(next.Grants),
			len(next.Tenants))})
	return next.Version, step.Complete().Again(keysAgain)
}

func (r *Reconciler) table(ctx context.Context, store *v1alpha1.RecordStore) (text []byte, revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, fleet.EtcdPatience)
	defer cancel()
	return r.Tables.Table(ctx, store)
}

func (r *Reconciler) putTable(ctx context.Context, store *v1alpha1.RecordStore, text []byte, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, fleet.EtcdPatience)
	defer cancel()
	return r.Tables.PutTable(ctx, store, text, revision)
}

// compiled says in the conditions of an object what became of it, and tells whether it is in the table.
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

// tell writes the status of a grant. force says whether processes decide by its table; nil: that is not known.
func (r *Reconciler) tell(ctx context.Context, g *v1alpha1.RecordGrant, version int64, out step.Outcome,
	force *fleet.GrantsInForce) error {
	after := g.DeepCopy()
	s := &after.Status
	s.ObservedGeneration = after.Generation
	if compiled(&s.Conditions, after.Generation, version, out) {
		s.TableVersion = version
	}
	if force != nil {
		say(after, *force)
	}
	_, err := step.WriteStatus(ctx, r.Client, g, after)
	return client.IgnoreNotFound(err)
}

// SetupWithManager watches RecordGrants and RecordTenants, and stores as they come and go.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	store := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
	})
	storeOf := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		var name string
		switch of := o.(type) {
		case *v1alpha1.RecordGrant:
			name = of.Spec.StoreRef.Name
		case *v1alpha1.RecordTenant:
			name = of.Spec.StoreRef.Name
		default:
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("recordgrant").
		Watches(&v1alpha1.RecordGrant{}, storeOf, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.RecordTenant{}, storeOf, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.RecordStore{}, store, builder.WithPredicates(identified())).
		// An etcd that does not answer holds up its own store alone.
		WithOptions(controller.Options{MaxConcurrentReconciles: 4, RateLimiter: step.Failures()}).
		Complete(r)
}

// identified passes stores that come, go, or change, or get their UID, their placement or another transport.
func identified() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.RecordStore)
		after, also := e.ObjectNew.(*v1alpha1.RecordStore)
		return ok && also && (before.Status.StoreUID != after.Status.StoreUID ||
			before.Status.PlacementInitialized != after.Status.PlacementInitialized ||
			before.Generation != after.Generation || transportOf(before) != transportOf(after) ||
			(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil))
	}}
}
