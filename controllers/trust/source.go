package trust

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// lookAgainAtSource is the time after which the operator reads a Secret with a good certificate again, if the
// certificate comes from another source. It is shorter than lookAgain, because somebody else renews that certificate.
const lookAgainAtSource = 2 * time.Minute

// readsAtOnce is the maximum number of concurrent reads of Secrets for one store.
const readsAtOnce = 16

// These are the values of SourceError.Reason.
const (
	ReasonCertManagerMissing   = "CertManagerMissing"     // the cluster does not have the kind Certificate
	ReasonCertManagerForbidden = "CertManagerForbidden"   // the operator has no permission for Certificates
	ReasonNotIssued            = "CertificateNotReady"    // the issuer has not signed the certificate
	ReasonNoAuthority          = "IssuerWithoutAuthority" // the issuer does not provide its authority
	ReasonSecretMissing        = "SecretMissing"
	ReasonSecretRefused        = "SecretRefused" // the contents of a Secret cannot be used
)

// SourceError describes something that the source of a store's certificates does not provide. The store keeps its
// earlier certificates.
type SourceError struct {
	Reason  string // becomes the reason of the condition Certificates
	Message string // names the object and the remedy
}

// Error implements error.
func (e *SourceError) Error() string { return e.Message }

// ErrLater is the error for a certificate from authorities that the processes do not trust yet.
var ErrLater = errors.New(
	"its certificate is signed by an authority that the processes of the store do not trust yet: it is used when they do")

// Found is what a source other than the operator provides for a store.
type Found struct {
	Source v1alpha1.TLSSource
	// Bundle and ClientBundle hold, in PEM, the authorities that came with usable certificates: those of processes and
	// those of callers. They are empty if there are none.
	Bundle, ClientBundle []byte
	// Troubles describe the certificates that cannot be used, in the order of the wanted certificates.
	Troubles []*SourceError
}

// Complete reports whether everything is present and usable. Only then may the store change to the source's
// authorities.
func (f *Found) Complete() bool { return len(f.Troubles) == 0 && len(f.Bundle) > 0 }

// given holds the certificates that were obtained from a source for one process or caller.
type given struct {
	Leaf
	pairs           map[string][]byte // certificates and keys, by file name in the process's folder
	bundle, clients []byte            // authorities in PEM; clients is nil if callers have no separate authorities
	asked           string            // identifies the request to the source
	read            time.Time
}

// SourceOf returns the source of certificates in the spec of a store.
func SourceOf(store *v1alpha1.RecordStore) v1alpha1.TLSSource {
	if store.Spec.TLS == nil {
		return v1alpha1.TLSFromOperator
	}
	return cmp.Or(store.Spec.TLS.Source, v1alpha1.TLSFromOperator)
}

// Gather requests all wanted certificates from the source of a store and checks them. It returns nil if the operator
// is the source.
func (k *Keeper) Gather(ctx context.Context, store *v1alpha1.RecordStore, wanted []Leaf) (*Found, error) {
	source := SourceOf(store)
	if source == v1alpha1.TLSFromOperator {
		return nil, nil
	}
	all, troubles := make([]*given, len(wanted)), make([]*SourceError, len(wanted))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for i, want := range wanted {
		group.Go(func() error {
			var err error
			if all[i], err = k.ask(ctx, store, want); !errors.As(err, &troubles[i]) {
				return err
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	found := &Found{Source: source, Troubles: slices.DeleteFunc(troubles, func(e *SourceError) bool { return e == nil })}
	var own, callers []byte
	for _, g := range all {
		if g != nil {
			own, callers = append(append(own, g.bundle...), '\n'), append(append(callers, g.clients...), '\n')
		}
	}
	var err error
	if found.Bundle, err = union(own); err == nil {
		found.ClientBundle, err = union(callers)
	}
	if len(found.ClientBundle) == 0 {
		found.ClientBundle = found.Bundle
	}
	return found, err
}

// union removes duplicates from a bundle of authorities in PEM, and puts the rest in a canonical order.
func union(bundle []byte) ([]byte, error) {
	if len(bytes.TrimSpace(bundle)) == 0 {
		return nil, nil
	}
	all, err := certificatesOf(bundle)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	var out []byte
	for _, cert := range slices.CompactFunc(all, (*x509.Certificate).Equal) {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return out, nil
}

// ask requests one certificate from the source of a store. It returns nil without an error if there is no certificate
// and none is required. Once the source has provided a good certificate, ask does not request it again for 2 minutes.
// The error may be a SourceError.
func (k *Keeper) ask(ctx context.Context, store *v1alpha1.RecordStore, want Leaf) (*given, error) {
	key := types.NamespacedName{Namespace: store.Namespace, Name: want.Secret}
	asked := fmt.Sprintf("%s %v %v %v", SourceOf(store), store.Spec.TLS.CertManager, store.Spec.TLS.Provided,
		want.DNSNames)
	if tls := store.Spec.TLS; tls.Provided != nil {
		asked += tls.Provided.SecretPrefix
	}
	if tls := store.Spec.TLS; tls.CertManager != nil {
		asked += fmt.Sprint(tls.CertManager.IssuerRef)
	}
	now := k.Now()
	k.mu.Lock()
	known := k.given[key]
	k.mu.Unlock()
	if known != nil && known.Identity == want.Identity && known.asked == asked && now.Sub(known.read) < lookAgainAtSource {
		return known, nil
	}
	var found *given
	var err error
	if SourceOf(store) == v1alpha1.TLSFromCertManager {
		found, err = k.askCertManager(ctx, store, want)
	} else {
		found, err = k.readProvided(ctx, store, want)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if found == nil {
		delete(k.given, key)
		return nil, err
	}
	if k.given == nil {
		k.given = map[types.NamespacedName]*given{}
	}
	found.Leaf, found.asked, found.read = want, asked, now
	k.given[key] = found
	return found, nil
}

// providedName returns the name of the Secret for a certificate that somebody else makes.
func providedName(store *v1alpha1.RecordStore, want Leaf) string {
	name := store.Spec.TLS.Provided.SecretPrefix + string(want.Identity.Role)
	if want.Identity.Role == identity.Shard {
		name += "-" + want.Identity.Name
	}
	return name
}

// readProvided reads and checks the Secret of one process or caller whose certificate somebody else makes.
func (k *Keeper) readProvided(ctx context.Context, store *v1alpha1.RecordStore, want Leaf) (*given, error) {
	var secret corev1.Secret
	key := types.NamespacedName{Namespace: store.Namespace, Name: providedName(store, want)}
	there, err := step.Read(ctx, k.Live, "Secret", key, &secret)
	switch {
	case err != nil || !there && want.caller():
		return nil, err
	case !there:
		return nil, &SourceError{ReasonSecretMissing, fmt.Sprintf(
			"Secret %s does not exist, which spec.tls.provided asks for: make it, with tls.crt, tls.key and "+
				"ca.crt, for %s", key.Name, want.Identity)}
	}
	return checkGiven(&secret, want, k.Now())
}

// checkGiven checks a Secret that is laid out like the folder of a process.
func checkGiven(secret *corev1.Secret, want Leaf, now time.Time) (*given, error) {
	pairs := map[string][]byte{}
	for _, key := range pairKeys {
		if content, there := secret.Data[key]; there {
			pairs[key] = content
		}
	}
	bundle := workload.KeyBundle
	if want.caller() && secret.Data[workload.KeyClientBundle] != nil {
		bundle = workload.KeyClientBundle
	}
	if err := checkPairs(secret.Data, bundle, want, now); err != nil {
		return nil, &SourceError{ReasonSecretRefused, fmt.Sprintf(
			"Secret %s cannot be used, and what was used before stays: %v", secret.Name, err)}
	}
	out := &given{pairs: pairs, bundle: secret.Data[workload.KeyBundle], clients: secret.Data[workload.KeyClientBundle]}
	for _, key := range []string{workload.KeyBundle, workload.KeyClientBundle} {
		if _, err := bundleHash(secret.Data[key]); err != nil && (key == workload.KeyBundle || secret.Data[key] != nil) {
			return nil, &SourceError{ReasonSecretRefused, fmt.Sprintf(
				"Secret %s cannot be used, and what was used before stays: %s: %v", secret.Name, key, err)}
		}
	}
	return out, nil
}

// pairKeys are the file names of a process's certificates and their keys.
var pairKeys = []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey, workload.KeyClientCert, workload.KeyClientKey}

// pairsOf returns a hash of a process's certificates and their keys.
func pairsOf(data map[string][]byte) [sha256.Size]byte {
	h := sha256.New()
	for _, key := range pairKeys {
		fmt.Fprintf(h, "%s %d\n", key, len(data[key]))
		h.Write(data[key])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// checkPairs checks certificates that are laid out like the folder of a process. The argument bundle is the file name
// of the authorities. Each certificate must be usable for its purpose, name the process, and include the host names
// under which others dial the process.
func checkPairs(data map[string][]byte, bundle string, want Leaf, now time.Time) error {
	server, client := x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	usages := []x509.ExtKeyUsage{client}
	if want.serves() {
		usages = []x509.ExtKeyUsage{server, client}
		if data[workload.KeyClientCert] != nil || data[workload.KeyClientKey] != nil {
			usages = usages[:1]
			if err := checkPair(data, workload.KeyClientCert, workload.KeyClientKey, bundle, want, now, client); err != nil {
				return err
			}
		}
	}
	return checkPair(data, corev1.TLSCertKey, corev1.TLSPrivateKeyKey, bundle, want, now, usages...)
}

// checkPair checks one certificate.
func checkPair(data map[string][]byte, cert, key, bundle string, want Leaf, now time.Time,
	usages ...x509.ExtKeyUsage) error {
	found, err := certs.Check(data, cert, key, bundle, now, usages...)
	if err != nil {
		return err
	}
	if uri := found.URIs[0].String(); uri != want.Identity.String() {
		return fmt.Errorf("%s names %s, and has to name %s", cert, uri, want.Identity)
	}
	if !slices.Contains(usages, x509.ExtKeyUsageServerAuth) {
		return nil
	}
	lacks := slices.DeleteFunc(want.requiredNames(), func(name string) bool {
		return slices.Contains(found.DNSNames, name) || found.VerifyHostname(name) == nil
	})
	if len(lacks) > 0 {
		return fmt.Errorf("%s lacks the DNS names by which others dial it: %s", cert, strings.Join(lacks, ", "))
	}
	return nil
}

// requiredNames returns the DNS names that a certificate must include. The store's own processes dial only
// NAME.NAMESPACE.svc, so the shorter and longer forms of that name are optional.
func (l *Leaf) requiredNames() (names []string) {
	for _, name := range l.DNSNames {
		short := !strings.Contains(name, ".") || strings.HasSuffix(name, ".svc.cluster.local") ||
			slices.Contains(l.DNSNames, name+".svc")
		if !short {
			names = append(names, name)
		}
	}
	return names
}

// ensureGiven copies the source's newest certificate for a process to the Secret that the process's pods mount, if
// the authorities that currently issue certificates signed it. If the source has no such certificate, the Secret
// keeps its contents as long as they are usable. The error may be a SourceError.
func (k *Keeper) ensureGiven(ctx context.Context, store *v1alpha1.RecordStore, as *Authorities, want Leaf) error {
	told, now := StateOf(store.Status.TLS).InUse(), k.Now()
	bundle := as.data[as.issuing(told).prefix()+workload.KeyBundle]
	if want.caller() {
		bundle = as.data[as.issuing(told).prefix()+workload.KeyClientBundle]
	}
	fits := func(pairs map[string][]byte) bool {
		data := maps.Clone(pairs)
		data[workload.KeyBundle] = bundle
		return checkPairs(data, workload.KeyBundle, want, now) == nil
	}
	pairs, cause, err := k.newest(ctx, store, as.Issuer(told), want, fits)
	if errors.Is(cause, errUnasked) {
		return k.RemoveSecret(ctx, store, want.Secret)
	}
	if err != nil {
		return err
	}
	var trouble error // error of the source, which is returned even though the Secret keeps its contents
	if of, ok := errors.AsType[*SourceError](cause); ok {
		trouble = of
	}
	var secret corev1.Secret
	key := types.NamespacedName{Namespace: store.Namespace, Name: want.Secret}
	known, trusts := k.known(key), bundlesOf(as, told)
	if cause != nil && known != nil && now.Sub(known.read) < lookAgain && known.identity == want.Identity &&
		known.under == underOf(store.Status.TLS) &&
		(!want.caller() || known.trusts.equal(trusts)) {
		return trouble
	}
	if known == nil || now.Sub(known.read) >= lookAgain || pairs == nil || known.pairs != pairsOf(pairs) ||
		want.caller() && !known.trusts.equal(trusts) {
		if _, err := step.Read(ctx, k.Live, "Secret", key, &secret); err != nil {
			return err
		}
		known = readLeaf(&secret, nil, now)
		if err := checkOwner(store, &secret, known, want); err != nil {
			return err
		}
	}
	if pairs == nil { // keep the existing certificate
		if known == nil || known.identity != want.Identity {
			return fmt.Errorf("certificate of %s: %w", want.Identity, cause)
		}
		pairs = maps.Clone(secret.Data)
		maps.DeleteFunc(pairs, func(key string, _ []byte) bool { return !slices.Contains(pairKeys, key) })
	}
	if known == nil || known.pairs != pairsOf(pairs) || want.caller() && !known.trusts.equal(trusts) {
		made := workload.LeafSecret(store, want.Secret, pairs, trusts.own, trusts.callers)
		known = readLeaf(made, nil, now)
		if _, err := step.Apply(ctx, k.Client, want.Owner, made); err != nil {
			return err
		}
	}
	under := ""
	if cause == nil || fits(pairs) {
		under = underOf(store.Status.TLS)
	}
	k.remember(key, known, under)
	return trouble
}

// errUnasked means that the source was never asked for a certificate of the process.
var errUnasked = errors.New("the source is asked for no certificate of this process")

// newest returns the newest certificates that the source provides for a process, if they were signed by the
// authorities that currently issue certificates. If there are none, it returns nil, and cause says why. The argument
// issuer is the source that currently issues certificates for the store.
func (k *Keeper) newest(ctx context.Context, store *v1alpha1.RecordStore, issuer v1alpha1.TLSSource, want Leaf,
	fits func(map[string][]byte) bool) (
	pairs map[string][]byte, cause, err error,
) {
	switch {
	case issuer == v1alpha1.TLSFromOperator:
		return nil, errNoKey, nil
	case issuer != SourceOf(store):
		return nil, fmt.Errorf("the certificates come from another source soon, and this one was not made: %w", ErrLater), nil
	}
	found, err := k.ask(ctx, store, want)
	var trouble *SourceError
	switch {
	case errors.As(err, &trouble):
		return nil, err, nil
	case err != nil:
		return nil, nil, err
	case found == nil:
		return nil, errUnasked, nil
	case !fits(found.pairs):
		return nil, ErrLater, nil
	}
	return found.pairs, nil, nil
}

// givenOperatorFiles is OperatorFiles for a store in which the operator does not issue its own certificate.
func (k *Keeper) givenOperatorFiles(ctx context.Context, store *v1alpha1.RecordStore,
	as *Authorities) (map[string][]byte, error) {
	var secret corev1.Secret
	key := types.NamespacedName{Namespace: store.Namespace, Name: workload.OperatorTLS(store.Name)}
	if err := k.Live.Get(ctx, key, &secret); err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", key, err)
	}
	bundle, clients := as.Bundles(StateOf(store.Status.TLS).InUse())
	out := map[string][]byte{workload.KeyBundle: bundle, workload.KeyClientBundle: clients,
		workload.KeyMode: []byte(store.Status.TLS.Transport)}
	for _, key := range pairKeys {
		if content, there := secret.Data[key]; there {
			out[key] = content
		}
	}
	return out, nil
}

// Pairs returns a hash that identifies the contents of a Secret that was made or copied. It is zero if unknown.
func (k *Keeper) Pairs(namespace, secret string) [sha256.Size]byte {
	if known := k.known(types.NamespacedName{Namespace: namespace, Name: secret}); known != nil {
		return known.pairs
	}
	return [sha256.Size]byte{}
}

// Remove deletes the Secret of a process or caller that no longer exists, and its Certificates with their Secrets. It
// keeps Secrets that somebody else has created.
func (k *Keeper) Remove(ctx context.Context, store *v1alpha1.RecordStore, gone Leaf) error {
	err := k.RemoveSecret(ctx, store, gone.Secret)
	if store.Status.TLS != nil && store.Status.TLS.Source == v1alpha1.TLSFromCertManager {
		err = errors.Join(err, k.RemoveCertificates(ctx, store, gone))
	}
	return err
}

// RemoveSecret deletes a Secret that the operator made.
func (k *Keeper) RemoveSecret(ctx context.Context, store *v1alpha1.RecordStore, name string) error {
	key := types.NamespacedName{Namespace: store.Namespace, Name: name}
	var secret corev1.Secret
	there, err := step.Read(ctx, k.Live, "Secret", key, &secret)
	if err != nil {
		return err
	}
	if !there || secret.Labels[v1alpha1.LabelStore] != store.Name || secret.Labels[labelManagedBy] != workload.TLSLabels(
		store.Name)[labelManagedBy] {
		return nil
	}
	if err := k.Client.Delete(ctx, &secret, client.Preconditions{UID: &secret.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Secret %s: %w", key, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.leaves, key)
	delete(k.given, key)
	return nil
}

// labelManagedBy is on all objects that the operator makes for certificates.
const labelManagedBy = "app.kubernetes.io/managed-by"
