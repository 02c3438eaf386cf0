package recordstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/identity"
)

// Reasons of condition Certificates, besides the phases.
const (
	reasonWithoutTLS       = "WithoutTLS"
	reasonAuthorityMissing = "AuthorityMissing"
	reasonOtherAuthority   = "OtherAuthority"
	reasonRefused          = "FilesRefused" // a process does not accept its new files
	reasonExpiring         = "Expiring"
	reasonSecretTaken      = "SecretTaken"
	// reasonKindTooOld means that the CRD RecordStore in the cluster is of an earlier version.
	reasonKindTooOld = "KindTooOld"
)

// expiring is how long before its end a certificate in use counts as a problem. It should have been renewed days
// earlier.
const expiring = 5 * 24 * time.Hour

// recordTLS records what an absent spec.tls means for a store that the operator handles for the first time. If the
// store's processes already have a transport that the status no longer shows (for example, because the CRD was of an
// earlier version for a while), recordTLS continues with that transport.
func (r *Reconciler) recordTLS(ctx context.Context, store *v1alpha1.RecordStore) error {
	if store.Status.TLS != nil {
		return nil
	}
	// The image is the one that the store runs, if that is known, or else the wanted one.
	first := trust.First(store, trust.Default, cmp.Or(store.Status.Image, workload.ImageOf(store, r.Image)))
	if store.Status.StoreUID != "" {
		var told corev1.ConfigMap
		key := client.ObjectKey{Namespace: store.Namespace, Name: workload.Transport(store.Name)}
		err := r.Live.Get(ctx, key, &told)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read ConfigMap %s: %w", key, err)
		}
		mode := v1alpha1.TLSTransport(told.Data[workload.KeyMode])
		known := slices.Contains([]v1alpha1.TLSTransport{v1alpha1.TransportPlaintext, v1alpha1.TransportBoth,
			v1alpha1.TransportRequired}, mode)
		if known && told.Labels[v1alpha1.LabelStore] == store.Name {
			first = trust.Again(store, mode, r.now())
		}
	}
	store.Status.TLS = &first
	return nil
}

// certificatesFirst stops the other steps until the transport of the store is known, so that no process starts with a
// different transport. Afterwards it stops nothing.
func (r *Reconciler) certificatesFirst(ctx context.Context, run *storeRun) step.Outcome {
	out := noted(r.applyTransport)(ctx, run)
	if r.Trust == nil || !out.IsComplete() {
		return out
	}
	status := run.store.Status.TLS
	if status == nil || status.Bundle == "" && status.WithoutImage == "" {
		return run.notes.With(step.Complete())
	}
	return step.Complete()
}

// applyTransport makes the authorities and certificates of a store, gives its processes their transport, and advances
// a change of the transport step by step (package trust).
func (r *Reconciler) applyTransport(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	if r.Trust == nil {
		return step.Complete()
	}
	if store.Status.TLS == nil { // it was recorded, but the API server did not keep it
		message := fmt.Sprintf(
			"the CustomResourceDefinition recordstores.%s has no status.tls: it is of an earlier version than this operator, "+
				"which changes nothing "+
				"of this store until it knows how the store is to speak. Upgrade the definitions (`helm upgrade` of the chart "+
				"sheaf-operator with crds.install, or "+
				"`kubectl apply --server-side -f config/crd/bases`)", v1alpha1.GroupVersion.Group)
		run.certificates(false, reasonKindTooOld, message)
		return step.Fail(reasonKindTooOld, message)
	}
	before := store.DeepCopy()
	status := store.Status.TLS
	status.Mode = trust.ModeOf(store)
	if image := workload.ImageOf(store, r.Image); status.WithoutImage != "" && !trust.MayMount(store, image) {
		run.certificates(true, reasonWithoutTLS,
			"this store served before there was TLS, and spec.tls is absent: it speaks plaintext. Its pods get "+
				"certificates with their next image; set spec.tls to have TLS")
		return step.Complete()
	}
	status.WithoutImage = ""
	if err := r.askTransport(ctx, run); err != nil {
		return step.Retry(err)
	}
	if out := r.gatherSource(ctx, run); !out.IsComplete() {
		return out
	}
	as, out := r.authorities(ctx, run)
	if !out.IsComplete() {
		return out
	}
	as, out = r.nextTransport(ctx, run, before, as)
	if !out.IsComplete() {
		return out
	}
	var notes step.Notes
	bundle, clients := as.Bundles(trust.StateOf(status).InUse())
	notes.Add(r.apply(ctx, store, workload.TransportMap(store, status.Transport, bundle, clients)))
	notes.Add(r.publishAuthorities(ctx, run, bundle))
	notes.Add(r.ensureLeaves(ctx, run, as))
	if err := r.speak(ctx, store, as); err != nil {
		notes.Add(step.Retry(fmt.Errorf("make the operator's own certificate: %w", err)))
	}
	return notes.With(step.Complete())
}

// authorities reads the authorities of the store, and creates the first ones of a new store. It never creates others
// unasked, because processes that trust the previous ones would be locked out.
func (r *Reconciler) authorities(ctx context.Context, run *storeRun) (*trust.Authorities, step.Outcome) {
	store, status := run.store, run.store.Status.TLS
	as, err := r.Trust.Authorities(ctx, store)
	missing, other := errors.Is(err, trust.ErrNoAuthority), errors.Is(err, trust.ErrOtherAuthority)
	switch {
	case err == nil:
		return as, step.Complete()
	case (missing || other) && run.source != nil && !run.source.Complete():
		return nil, run.lacksSource()
	case missing && status.Bundle == "" && run.transport.trusts == "":
		if run.source != nil {
			as, err = trust.GivenAuthorities(run.source), nil
		} else {
			as, err = trust.NewAuthorities(store, r.now())
		}
		if err == nil {
			err = r.Trust.Put(ctx, store, as)
		}
		if err != nil {
			return nil, step.Retry(err)
		}
		step.Report(ctx, r.Events, store, step.News{Reason: "AuthoritiesMade", Action: "Issue",
			Message: fmt.Sprintf("recorded the authorities of this store (source %s) in Secret %s", trust.SourceOf(store),
				workload.Authority(store.Name))})
		return as, step.Complete()
	case !missing && !other:
		return nil, step.Retry(err)
	case run.source != nil: // its authorities have no keys here that could be lost
		return r.adoptAuthorities(ctx, run)
	}
	if rotate := specTLS(store).Rotate; rotate != "" && rotate != status.Rotated && rotate != status.Rotating {
		return r.adoptAuthorities(ctx, run)
	}
	reason := reasonAuthorityMissing
	if other {
		reason = reasonOtherAuthority
	}
	message := fmt.Sprintf(
		"%v, and certificates are not renewed. Put the Secret back from a backup, or have new authorities made, which "+
			"takes a few "+
			"minutes and no restart of shards: set spec.tls.rotate to another value than %q", err,
		cmp.Or(status.Rotating, status.Rotated))
	run.certificates(false, reason, message)
	return nil, step.Fail(reason, message)
}

// adoptAuthorities starts a change of authorities if only their certificates are left. Processes continue to trust
// them until all processes have certificates of the next authorities.
func (r *Reconciler) adoptAuthorities(ctx context.Context, run *storeRun) (*trust.Authorities, step.Outcome) {
	store, status := run.store, run.store.Status.TLS
	bundle, clients, err := r.trusted(ctx, store)
	if err != nil {
		return nil, step.Retry(err)
	}
	as, err := trust.Adopted(bundle, clients, run.source, store, r.now())
	if err == nil {
		_, _, err = as.Hashes(trust.State{}.InUse())
	}
	if err != nil {
		message := fmt.Sprintf(
			"the certificates of the authorities that are gone are neither in ConfigMap %s nor in Secret %s (%v): make the "+
				"ConfigMap with ca.crt "+
				"and client-ca.crt as a pod of the store has them in %s", workload.Transport(store.Name),
			workload.AdminTLS(store.Name), err, workload.TLSDir)
		run.certificates(false, reasonAuthorityMissing, message)
		return nil, step.Fail(reasonAuthorityMissing, message)
	}
	if err := r.Trust.Put(ctx, store, as); err != nil {
		return nil, step.Retry(err)
	}
	status.Transport = cmp.Or(status.Transport, run.transport.mode)
	status.Phase, status.Since, status.Rotating = v1alpha1.TLSTrusting, new(metav1.NewTime(r.now())), specTLS(store).Rotate
	return as, step.Complete()
}

// trusted returns the certificates of the authorities that processes were last told to trust, in PEM. They are empty if
// neither the ConfigMap of the processes nor the Secret of the administrator's certificate has them.
func (r *Reconciler) trusted(ctx context.Context, store *v1alpha1.RecordStore) (bundle, clients []byte, err error) {
	var told corev1.ConfigMap
	key := client.ObjectKey{Namespace: store.Namespace, Name: workload.Transport(store.Name)}
	err = r.Live.Get(ctx, key, &told)
	if err == nil {
		return []byte(told.Data[workload.KeyBundle]), []byte(told.Data[workload.KeyClientBundle]), nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	var admin corev1.Secret
	key.Name = workload.AdminTLS(store.Name)
	if err := r.Live.Get(ctx, key, &admin); client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("read Secret %s: %w", key, err)
	}
	return admin.Data[workload.KeyBundle], admin.Data[workload.KeyClientBundle], nil
}

// nextTransport decides the next step of a change and records it before any process is given new files.
func (r *Reconciler) nextTransport(ctx context.Context, run *storeRun, before *v1alpha1.RecordStore,
	as *trust.Authorities) (*trust.Authorities, step.Outcome) {
	store, status := run.store, run.store.Status.TLS
	now := r.now()
	other, superseded, err := run.differs(as)
	if err != nil {
		return nil, step.Retry(err)
	}
	d := trust.Decide(trust.Input{
		Wanted: trust.TransportOf(status.Mode), Rotate: specTLS(store).Rotate, State: trust.StateOf(status),
		HasNext: as.HasNext(),
		Other:   other, Superseded: superseded, Reports: run.transport.reports, Found: run.transport.mode, Now: now,
	})
	if d.Merge {
		as = as.Merged()
	}
	switch {
	case d.MakeNext && run.source != nil:
		as = as.WithNextGiven(run.source)
	case d.MakeNext:
		as, err = as.WithNext(store, now)
	case d.Promote:
		as = as.Promoted()
	}
	if err == nil && (d.MakeNext || d.Promote) {
		err = r.Trust.Put(ctx, store, as)
	}
	if err != nil {
		return nil, step.Retry(err)
	}
	s := d.State
	changed := s.Phase != status.Phase || s.Transport != status.Transport
	status.Transport, status.Phase, status.Rotating, status.Rotated = s.Transport, s.Phase, s.Rotating, s.Rotated
	if !s.Since.IsZero() {
		status.Since = new(metav1.NewTime(s.Since))
	}
	if status.Bundle, status.ClientBundle, err = as.Hashes(s.InUse()); err != nil {
		return nil, step.Retry(err)
	}
	if err := r.sweepSource(ctx, run, as); err != nil {
		return nil, step.Retry(err)
	}
	run.sayCertificates(d.Words, now)
	if equality.Semantic.DeepEqual(before.Status.TLS, status) {
		return as, step.Complete()
	}
	if _, err := r.writeStatus(ctx, before, store); err != nil {
		return nil, step.Retry(err)
	}
	if changed {
		run.transport.changes = true
		step.Report(ctx, r.Events, store, step.News{Reason: "Transport" + string(s.Phase), Action: "Tell",
			Message: fmt.Sprintf("certificates: phase %s, transport %s%s", s.Phase, s.Transport, step.Colon(d.Words))})
	}
	return as, step.Complete()
}

// specTLS returns spec.tls, or the zero value if it is absent.
func specTLS(store *v1alpha1.RecordStore) v1alpha1.TLS {
	if store.Spec.TLS == nil {
		return v1alpha1.TLS{}
	}
	return *store.Spec.TLS
}

// ensureLeaves makes and renews the certificates of gateways, etcd and callers. The pools make those of the shards.
func (r *Reconciler) ensureLeaves(ctx context.Context, run *storeRun, as *trust.Authorities) step.Outcome {
	store := run.store
	wanted, err := storeLeaves(store)
	if err != nil {
		return step.Retry(err)
	}
	var notes step.Notes
	for _, leaf := range wanted {
		if leaf.Identity.Role == identity.Operator && as.Issuer(trust.StateOf(store.Status.TLS).
			InUse()) == v1alpha1.TLSFromOperator {
			continue // it is kept in memory only
		}
		notes.Add(run.leafOutcome(r.Trust.Ensure(ctx, store, as, leaf)))
	}
	if run.source != nil && len(run.source.Troubles) > 0 {
		notes.Add(run.lacksSource())
	}
	if err := r.sweepClients(ctx, run); err != nil {
		notes.Add(step.Retry(err))
	}
	return notes.With(step.Complete())
}

// leafOutcome converts the result for one certificate to an outcome. If the source does not provide a certificate, that
// is not a failure here: gatherSource has recorded it, and lacksSource reports it.
func (run *storeRun) leafOutcome(err error) step.Outcome {
	var trouble *trust.SourceError
	switch {
	case err == nil, errors.As(err, &trouble):
		return step.Complete()
	case errors.Is(err, trust.ErrNotOurs):
		run.certificates(false, reasonSecretTaken, err.Error())
		return step.Fail(reasonSecretTaken, err.Error())
	case errors.Is(err, trust.ErrLater):
		return step.Wait("NotTrustedYet", err.Error(), step.PauseShort)
	}
	return step.Retry(err)
}

// speak gives the operator the credentials for the current transport of the store's processes. It renews them when
// their inputs change, and long before their certificate ends.
func (r *Reconciler) speak(ctx context.Context, store *v1alpha1.RecordStore, as *trust.Authorities) error {
	if r.Credentials == nil {
		return nil
	}
	status := store.Status.TLS
	want := spoken{
		transport: status.Transport, bundle: status.Bundle, issueBy: trust.StateOf(status).InUse().IssueBy, day: r.now().
				Unix() / (24 * 3600),
		pairs: r.Trust.Pairs(store.Namespace, workload.OperatorTLS(store.Name)),
	}
	if was, ok := r.spoken.Load(store.UID); ok && was == want {
		return nil
	}
	files, err := r.Trust.OperatorFiles(ctx, store, as)
	if err == nil {
		err = r.Credentials.Set(client.ObjectKeyFromObject(store).String(), files)
	}
	if err == nil {
		r.spoken.Store(store.UID, want)
	}
	return err
}

// spoken identifies the inputs from which the operator's own credentials were made.
type spoken struct {
	transport v1alpha1.TLSTransport
	bundle    string
	issueBy   trust.Which
	day       int64
	pairs     [sha256.Size]byte // hash of the operator's certificate from another source; zero: none is known
}

// sayCertificates sets condition Certificates from the reports of the processes.
func (run *storeRun) sayCertificates(words string, now time.Time) {
	status, heard := run.store.Status.TLS, run.transport
	status.Processes, status.Reported = int32(heard.reports.Processes),
		int32(heard.reports.UpToDate) //nolint:gosec // a few thousand
	status.PlaintextConnections = heard.plaintext
	status.NotAfter = nil
	if !heard.notAfter.IsZero() {
		status.NotAfter = new(metav1.NewTime(heard.notAfter))
	}
	switch {
	case run.source != nil && len(run.source.Troubles) > 0:
		run.lacksSource()
	case heard.refused != "":
		run.certificates(false, reasonRefused, "a process does not take its new certificates, and uses those of before: "+
			heard.refused)
	case !heard.notAfter.IsZero() && heard.notAfter.Before(now.Add(expiring)):
		run.certificates(false, reasonExpiring, fmt.Sprintf(
			"the certificate of %s ends at %s: it was to be renewed long before. See the operator's log, "+
				"and whether the pod's folder %s follows its Secret", heard.first, heard.notAfter.UTC().Format(time.RFC3339),
			workload.TLSDir))
	case words != "":
		run.certificates(true, string(cmp.Or(status.Phase, v1alpha1.TLSReady)), words)
	case heard.reports.UpToDate == 0:
		step.SetCondition(&run.store.Status.Conditions, run.store.Generation, v1alpha1.ConditionCertificates,
			metav1.ConditionUnknown, "ProcessesSilent", fmt.Sprintf(
				"no process of %d says yet that it uses its certificates", heard.reports.Processes))
	default:
		run.certificates(true, string(v1alpha1.TLSReady), fmt.Sprintf(
			"%d of %d processes use transport %s with their certificates",
			heard.reports.UpToDate, heard.reports.Processes, status.Transport))
	}
}

func (run *storeRun) certificates(good bool, reason, message string) {
	setTruth(&run.store.Status.Conditions, run.store.Generation, v1alpha1.ConditionCertificates, good, reason, reason,
		message)
}
