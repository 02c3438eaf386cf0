package recordstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// expiring is the remaining lifetime below which a certificate in use counts as a problem. Certificates are normally
// renewed days earlier.
const expiring = 5 * 24 * time.Hour

// certificates creates and checks the certificates of a store. It sets the fields transport and source of seen.
type certificates struct {
	*writer
	seen        *observed
	live        client.Reader
	trust       *trust.Keeper
	transports  trust.TransportClient
	credentials trust.Credentials
	last        *sync.Map // maps a store's UID to the last *reportedTransport
	spoken      *sync.Map // maps a store's UID to the *spoken of the operator's current credentials
	publishing  publishing
	now         time.Time
}

// do creates the authorities and certificates of a store, tells its processes which transport to use, and advances a
// change of the transport step by step (package trust).
func (c *certificates) do(ctx context.Context) step.Outcome {
	store, seen := c.store, c.seen
	if c.trust == nil {
		return step.Complete()
	}
	if store.Status.TLS == nil { // the API server has dropped the field
		message := fmt.Sprintf(
			"the CustomResourceDefinition recordstores.%s has no status.tls: it is of an earlier version than this operator, "+
				"which changes nothing of this store until it knows how the store is to speak. Upgrade the definitions (`helm "+
				"upgrade` of the chart sheaf-operator with crds.install, or `kubectl apply --server-side -f "+
				"config/crd/bases`)", v1alpha1.GroupVersion.Group)
		seen.certificates(false, reasonKindTooOld, message)
		return step.Fail(reasonKindTooOld, message)
	}
	status := store.Status.TLS
	status.Mode = trust.ModeOf(store)
	if status.WithoutImage != "" && !trust.MayMount(store, seen.image) {
		seen.certificates(true, reasonWithoutTLS,
			"this store served before there was TLS, and spec.tls is absent: it speaks plaintext. Its pods get "+
				"certificates with their next image; set spec.tls to have TLS")
		return step.Complete()
	}
	status.WithoutImage = ""
	if err := c.askTransport(ctx); err != nil {
		return step.Retry(err)
	}
	if out := c.gatherSource(ctx); !out.IsComplete() {
		return out
	}
	as, out := c.authorities(ctx)
	if !out.IsComplete() {
		return out
	}
	as, out = c.nextTransport(ctx, as)
	if !out.IsComplete() {
		return out
	}
	var notes step.Notes
	bundle, clients := as.Bundles(trust.StateOf(status).InUse())
	notes.Add(c.apply(ctx, workload.TransportMap(store, status.Transport, bundle, clients)))
	notes.Add(c.publishing.do(ctx, bundle))
	notes.Add(c.ensureLeaves(ctx, as))
	if err := c.speak(ctx, as); err != nil {
		notes.Add(step.Retry(fmt.Errorf("make the operator's own certificate: %w", err)))
	}
	return notes.With(step.Complete())
}

// authorities reads the authorities of the store, and creates the first ones of a new store. It never replaces missing
// authorities by itself, because that would lock out processes that trust the previous ones.
func (c *certificates) authorities(ctx context.Context) (*trust.Authorities, step.Outcome) {
	store, seen, status := c.store, c.seen, c.store.Status.TLS
	as, err := c.trust.Authorities(ctx, store)
	missing, other := errors.Is(err, trust.ErrNoAuthority), errors.Is(err, trust.ErrOtherAuthority)
	switch {
	case err == nil:
		return as, step.Complete()
	case (missing || other) && seen.source != nil && !seen.source.Complete():
		return nil, seen.lacksSource()
	case missing && status.Bundle == "" && seen.transport.trusts == "":
		if as, err = trust.NewAuthorities(seen.source, store, c.now); err == nil {
			err = c.trust.Put(ctx, store, as)
		}
		if err != nil {
			return nil, step.Retry(err)
		}
		c.tell(ctx, "AuthoritiesMade", "Issue", nil, "recorded the authorities of this store (source %s) in Secret %s",
			trust.SourceOf(store), workload.Authority(store.Name))
		return as, step.Complete()
	case !missing && !other:
		return nil, step.Retry(err)
	case seen.source != nil: // the certificates come from another source, so the operator never had these keys
		return c.adoptAuthorities(ctx)
	}
	if rotate := specTLS(store).Rotate; rotate != "" && rotate != status.Rotated && rotate != status.Rotating {
		return c.adoptAuthorities(ctx)
	}
	reason := reasonAuthorityMissing
	if other {
		reason = reasonOtherAuthority
	}
	message := fmt.Sprintf(
		"%v, and certificates are not renewed. Put the Secret back from a backup, with its labels, or have new authorities "+
			"made, which takes a few minutes and no restart of shards: set spec.tls.rotate to another value than %q", err,
		cmp.Or(status.Rotating, status.Rotated))
	seen.certificates(false, reason, message)
	return nil, step.Fail(reason, message)
}

// adoptAuthorities starts a change of authorities if the keys of the current ones are lost and only their certificates
// remain. Processes continue to trust them until all processes have certificates of the next authorities.
func (c *certificates) adoptAuthorities(ctx context.Context) (*trust.Authorities, step.Outcome) {
	store, seen, status := c.store, c.seen, c.store.Status.TLS
	bundle, clients, err := c.trusted(ctx)
	if err != nil {
		return nil, step.Retry(err)
	}
	as, err := trust.Adopted(bundle, clients, seen.source, store, c.now)
	if err == nil {
		_, _, err = as.Hashes(trust.State{}.InUse())
	}
	if err != nil {
		message := fmt.Sprintf(
			"the certificates of the authorities that are gone are neither in ConfigMap %s nor in Secret %s (%v): make the "+
				"ConfigMap with ca.crt and client-ca.crt as a pod of the store has them in %s", workload.Transport(store.Name),
			workload.AdminTLS(store.Name), err, workload.TLSDir)
		seen.certificates(false, reasonAuthorityMissing, message)
		return nil, step.Fail(reasonAuthorityMissing, message)
	}
	if err := c.trust.Put(ctx, store, as); err != nil {
		return nil, step.Retry(err)
	}
	status.Transport = cmp.Or(status.Transport, seen.transport.mode)
	status.Phase, status.Since, status.Rotating = v1alpha1.TLSTrusting, new(metav1.NewTime(c.now)), specTLS(store).Rotate
	return as, step.Complete()
}

// trusted returns, in PEM, the certificates of the authorities that processes currently trust. It reads them from the
// ConfigMap of the processes or from the Secret with the administrator's certificate. They are empty if neither
// contains them.
func (c *certificates) trusted(ctx context.Context) (bundle, clients []byte, err error) {
	store := c.store
	var told corev1.ConfigMap
	key := client.ObjectKey{Namespace: store.Namespace, Name: workload.Transport(store.Name)}
	there, err := step.Read(ctx, c.live, "ConfigMap", key, &told)
	if err != nil || there {
		return []byte(told.Data[workload.KeyBundle]), []byte(told.Data[workload.KeyClientBundle]), err
	}
	var admin corev1.Secret
	key.Name = workload.AdminTLS(store.Name)
	_, err = step.Read(ctx, c.live, "Secret", key, &admin)
	return admin.Data[workload.KeyBundle], admin.Data[workload.KeyClientBundle], err
}

// nextTransport decides the next step of a change and records it before any process is given new files.
func (c *certificates) nextTransport(ctx context.Context, as *trust.Authorities) (*trust.Authorities, step.Outcome) {
	store, seen, status := c.store, c.seen, c.store.Status.TLS
	other, superseded, err := seen.differs(as)
	if err != nil {
		return nil, step.Retry(err)
	}
	d := trust.Decide(trust.Input{
		Wanted: trust.TransportOf(status.Mode), Rotate: specTLS(store).Rotate, State: trust.StateOf(status),
		HasNext: as.HasNext(),
		Other:   other, Superseded: superseded, Reports: seen.transport.reports, Found: seen.transport.mode, Now: c.now,
	})
	if d.Merge {
		as = as.Merged()
	}
	switch {
	case d.MakeNext:
		as, err = as.WithNext(seen.source, store, c.now)
	case d.Promote:
		as = as.Promoted()
	}
	if err == nil && (d.MakeNext || d.Promote) {
		err = c.trust.Put(ctx, store, as)
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
	if err := c.sweepSource(ctx, as); err != nil {
		return nil, step.Retry(err)
	}
	if err := c.commitTransport(ctx); err != nil {
		return nil, step.Retry(err)
	}
	seen.sayCertificates(d.Words, c.now)
	if changed {
		seen.transport.changes = true
		c.tell(ctx, "Transport"+string(s.Phase), "Tell", nil, "certificates: phase %s, transport %s%s", s.Phase,
			s.Transport, step.Colon(d.Words))
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

// ensureLeaves creates and renews the certificates of gateways, etcd and callers. The pools create the certificates of
// the shards.
func (c *certificates) ensureLeaves(ctx context.Context, as *trust.Authorities) step.Outcome {
	store, seen := c.store, c.seen
	wanted, err := storeLeaves(store)
	if err != nil {
		return step.Retry(err)
	}
	var notes step.Notes
	for _, leaf := range wanted {
		if leaf.Identity.Role == identity.Operator && as.Issuer(trust.StateOf(store.Status.TLS).
			InUse()) == v1alpha1.TLSFromOperator {
			continue // the operator's own certificate is kept only in memory
		}
		notes.Add(seen.leafOutcome(c.trust.Ensure(ctx, store, as, leaf)))
	}
	if seen.source != nil && len(seen.source.Troubles) > 0 {
		notes.Add(seen.lacksSource())
	}
	if err := c.sweepClients(ctx); err != nil {
		notes.Add(step.Retry(err))
	}
	return notes.With(step.Complete())
}

// leafOutcome converts the result for one certificate to an outcome. A certificate that the source does not provide is
// not a failure in this step, because gatherSource has recorded it and lacksSource reports it.
func (seen *observed) leafOutcome(err error) step.Outcome {
	var trouble *trust.SourceError
	switch {
	case err == nil, errors.As(err, &trouble):
		return step.Complete()
	case errors.Is(err, trust.ErrNotOurs):
		seen.certificates(false, reasonSecretTaken, err.Error())
		return step.Fail(reasonSecretTaken, err.Error())
	case errors.Is(err, trust.ErrLater):
		return step.Wait("NotTrustedYet", err.Error(), step.PauseShort)
	}
	return step.Retry(err)
}

// speak gives the operator the credentials for the current transport of the store's processes. It renews them when
// their inputs change, and long before their certificate expires.
func (c *certificates) speak(ctx context.Context, as *trust.Authorities) error {
	store := c.store
	if c.credentials == nil {
		return nil
	}
	status := store.Status.TLS
	want := spoken{
		transport: status.Transport, bundle: status.Bundle, issueBy: trust.StateOf(status).InUse().IssueBy,
		day:   c.now.Unix() / (24 * 3600),
		pairs: c.trust.Pairs(store.Namespace, workload.OperatorTLS(store.Name)),
	}
	if was, ok := c.spoken.Load(store.UID); ok && was == want {
		return nil
	}
	files, err := c.trust.OperatorFiles(ctx, store, as)
	if err == nil {
		err = c.credentials.Set(client.ObjectKeyFromObject(store).String(), files)
	}
	if err == nil {
		c.spoken.Store(store.UID, want)
	}
	return err
}

// spoken identifies the inputs from which the operator's own credentials were made.
type spoken struct {
	transport v1alpha1.TLSTransport
	bundle    string
	issueBy   trust.Which
	day       int64
	// Hash of the operator's certificate from another source; zero if that certificate is not known.
	pairs [sha256.Size]byte
}

// sayCertificates sets condition Certificates from the reports of the processes.
func (seen *observed) sayCertificates(words string, now time.Time) {
	status, heard := seen.store.Status.TLS, seen.transport
	status.Processes, status.Reported = int32(heard.reports.Processes),
		int32(heard.reports.UpToDate) //nolint:gosec // a store has at most a few thousand processes
	status.PlaintextConnections = heard.plaintext
	status.NotAfter = nil
	if !heard.notAfter.IsZero() {
		status.NotAfter = new(metav1.NewTime(heard.notAfter))
	}
	switch {
	case seen.source != nil && len(seen.source.Troubles) > 0:
		seen.lacksSource()
	case heard.refused != "":
		seen.certificates(false, reasonRefused, "a process does not take its new certificates, and uses those of before: "+
			heard.refused)
	case !heard.notAfter.IsZero() && heard.notAfter.Before(now.Add(expiring)):
		seen.certificates(false, reasonExpiring, fmt.Sprintf(
			"the certificate of %s ends at %s: it was to be renewed long before. See the operator's log, "+
				"and whether the pod's folder %s follows its Secret", heard.first, heard.notAfter.UTC().Format(time.RFC3339),
			workload.TLSDir))
	case words != "":
		seen.certificates(true, string(cmp.Or(status.Phase, v1alpha1.TLSReady)), words)
	case heard.reports.UpToDate == 0:
		say(seen.store, v1alpha1.ConditionCertificates, metav1.ConditionUnknown, "ProcessesSilent", fmt.Sprintf(
			"no process of %d says yet that it uses its certificates", heard.reports.Processes))
	default:
		seen.certificates(true, string(v1alpha1.TLSReady), fmt.Sprintf(
			"%d of %d processes use transport %s with their certificates",
			heard.reports.UpToDate, heard.reports.Processes, status.Transport))
	}
}

func (seen *observed) certificates(good bool, reason, message string) {
	sayWhether(seen.store, v1alpha1.ConditionCertificates, good, reason, reason, message)
}
