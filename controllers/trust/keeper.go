package trust

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/identity"
)

// trustDomain of the names that the operator gives. A store's UID is in each name, so that clusters with one domain do
// not meet.
const trustDomain = "cluster.local"

// lookAgain is after how long a Secret is read again that was good: somebody may have changed or deleted it.
const lookAgain = 10 * time.Minute

// Errors of a Keeper.
var (
	// ErrNoAuthority: there is no Secret with the authorities of the store.
	ErrNoAuthority = errors.New("the Secret with the authorities of the store does not exist")
	// ErrOtherAuthority: the Secret holds other authorities than the processes of the store were told.
	ErrOtherAuthority = errors.New("the Secret holds other authorities than the processes of the store were told to trust")
	// ErrNotOurs: a Secret of the name is somebody else's.
	ErrNotOurs = errors.New("it was not made by the operator")
)

// Keeper reads and writes the Secrets of stores' certificates. Secrets are not cached, as a right to list them is a
// right to read all of them: a Keeper remembers what it has read for 10 minutes. Safe for concurrent use.
type Keeper struct {
	Client client.Client // writes
	Live   client.Reader // reads from the API server
	Now    func() time.Time

	mu     sync.Mutex
	leaves map[types.NamespacedName]*leaf  // by Secret; never changed
	given  map[types.NamespacedName]*given // by the Secret that they are for; never changed
}

// leaf is the certificate of a Secret as it was read last.
type leaf struct {
	identity            identity.Identity
	names               []string // DNS
	notBefore, notAfter time.Time
	issuer              [sha256.Size]byte // of the authority's certificate
	trusts              bundles           // that stand beside it
	read                time.Time
	pairs               [sha256.Size]byte // of the certificates with their keys
	under               string            // see underOf, where it was found to be as wanted; empty: nobody has looked
}

// underOf names what a state has certificates issued by: one that was good under another one is not renewed yet.
func underOf(status *v1alpha1.TLSStatus) string {
	return fmt.Sprintf("%s %s %d", status.Bundle, status.ClientBundle, StateOf(status).Told().IssueBy)
}

// bundles are what the owner of a certificate checks others by, in PEM.
type bundles struct{ own, callers []byte }

func bundlesOf(as *Authorities, told Told) (b bundles) {
	b.own, b.callers = as.Bundles(told)
	return b
}

func (b bundles) equal(other bundles) bool {
	return bytes.Equal(b.own, other.own) && bytes.Equal(b.callers, other.callers)
}

// Leaf is a certificate that is wanted in a Secret.
type Leaf struct {
	Secret   string
	Identity identity.Identity
	DNSNames []string
	Owner    client.Object // of the Secret
}

// caller tells whether it is none of a process of the store.
func (l *Leaf) caller() bool { return !l.Identity.IsComponent() }

// ShardLeaf is the certificate of a shard.
func ShardLeaf(of identity.Store, pool *v1alpha1.ShardPool, shard string) Leaf {
	return Leaf{
		Secret: workload.ShardTLS(shard), Identity: identity.Identity{Store: of, Role: identity.Shard, Name: shard},
		DNSNames: workload.ShardNames(pool.Namespace, pool.Name, shard), Owner: pool,
	}
}

// StoreIdentity is the store in names of its processes.
func StoreIdentity(store *v1alpha1.RecordStore) (identity.Store, error) {
	id, err := uuid.Parse(store.Status.StoreUID)
	if err != nil {
		return identity.Store{}, fmt.Errorf("status.storeUID %q: %w", store.Status.StoreUID, err)
	}
	return identity.Store{Domain: trustDomain, Namespace: store.Namespace, UID: id}, nil
}

// StateOf is the state that the status of a store records.
func StateOf(tls *v1alpha1.TLSStatus) State {
	s := State{Transport: tls.Transport, Phase: tls.Phase, Rotating: tls.Rotating, Rotated: tls.Rotated}
	if tls.Since != nil {
		s.Since = tls.Since.Time
	}
	return s
}

// Authorities reads those of a store. Where the status says which the processes trust, they must be these. Errors may
// be ErrNoAuthority and ErrOtherAuthority.
func (k *Keeper) Authorities(ctx context.Context, store *v1alpha1.RecordStore) (*Authorities, error) {
	key := types.NamespacedName{Namespace: store.Namespace, Name: workload.Authority(store.Name)}
	var secret corev1.Secret
	if err := k.Live.Get(ctx, key, &secret); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("secret %s: %w", key.Name, ErrNoAuthority)
	} else if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", key, err)
	}
	as, err := parse(secret.Data)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w: %w", key.Name, ErrOtherAuthority, err)
	}
	status := store.Status.TLS
	if status == nil || status.Bundle == "" {
		return as, nil
	}
	bundle, clients, err := as.Hashes(StateOf(status).Told())
	switch {
	case err != nil || bundle == status.Bundle && clients == status.ClientBundle:
	case as.isCut(status):
		as.cut = true
	default:
		err = fmt.Errorf("secret %s: %w", key.Name, ErrOtherAuthority)
	}
	return as, err
}

// Put writes the authorities of a store.
func (k *Keeper) Put(ctx context.Context, store *v1alpha1.RecordStore, as *Authorities) error {
	_, err := step.Apply(ctx, k.Client, store, workload.AuthoritySecret(store, as.Data()))
	return err
}

// Ensure makes the certificate of a Secret where it is missing or not as wanted, and renews it when two thirds of its
// time are over; where the operator is not the source, it brings there what the source gives. Errors may be ErrNotOurs
// and SourceErrors.
func (k *Keeper) Ensure(ctx context.Context, store *v1alpha1.RecordStore, as *Authorities, want Leaf) error {
	told := StateOf(store.Status.TLS).Told()
	if as.Issuer(told) != v1alpha1.TLSFromOperator {
		return k.ensureGiven(ctx, store, as, want)
	}
	key := types.NamespacedName{Namespace: store.Namespace, Name: want.Secret}
	under := underOf(store.Status.TLS)
	issuer, err := as.issuer(told, want.caller())
	if errors.Is(err, errNoKey) {
		return k.ensureGiven(ctx, store, as, want)
	}
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", want.Identity, err)
	}
	bundles := bundlesOf(as, told)
	now := k.Now()
	if known := k.known(key); known != nil && now.Sub(known.read) < lookAgain && known.good(want, issuer, bundles, now) {
		k.remember(key, known, under)
		return nil
	}
	var secret corev1.Secret
	if err := k.Live.Get(ctx, key, &secret); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Secret %s: %w", key, err)
	}
	found := readLeaf(&secret, issuer, now)
	if err := ours(store, &secret, found, want); err != nil {
		return err
	}
	if found.good(want, issuer, bundles, now) {
		k.remember(key, found, under)
		return nil
	}
	return k.issue(ctx, store, issuer, bundles, want)
}

// ours tells whether a Secret, of which found is the certificate, may be written: it is not there, or was made for that
// very process. Errors are ErrNotOurs.
func ours(store *v1alpha1.RecordStore, secret *corev1.Secret, found *leaf, want Leaf) error {
	if secret.UID != "" && secret.Labels[v1alpha1.LabelStore] != store.Name {
		return fmt.Errorf("secret %s: %w: delete it, or give the store another name", want.Secret, ErrNotOurs)
	}
	if found != nil && found.identity.Store == want.Identity.Store && found.identity != want.Identity {
		return fmt.Errorf("secret %s: %w for %s, but for %s of the same store: give one of them another name", want.Secret,
			ErrNotOurs, want.Identity, found.identity)
	}
	return nil
}

func (k *Keeper) issue(ctx context.Context, store *v1alpha1.RecordStore, issuer *authority.Authority, trusts bundles,
	want Leaf) error {
	now := k.Now()
	cert, private, err := issuer.Issue(authority.Leaf{
		Identity: want.Identity, DNSNames: want.DNSNames, Server: true, Client: true, Now: now, Lifetime: leafLifetime,
	})
	if err != nil {
		return err
	}
	pairs := map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: private}
	secret := workload.LeafSecret(store, want.Secret, pairs, trusts.own, trusts.callers)
	key := client.ObjectKeyFromObject(secret)
	found := readLeaf(secret, issuer, now)
	if _, err := step.Apply(ctx, k.Client, want.Owner, secret); err != nil {
		return err
	}
	k.remember(key, found, underOf(store.Status.TLS))
	return nil
}

// NotAfter is when the newest certificate ends that was made for a Secret, by the authorities that issue now; false: it
// was not made yet, or is not known.
func (k *Keeper) NotAfter(store *v1alpha1.RecordStore, secret string) (time.Time, bool) {
	known := k.known(types.NamespacedName{Namespace: store.Namespace, Name: secret})
	if known == nil || known.under != underOf(store.Status.TLS) {
		return time.Time{}, false
	}
	return known.notAfter, true
}

// Forget what is remembered of a store that is gone.
func (k *Keeper) Forget(store *v1alpha1.RecordStore) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.leaves, func(_ types.NamespacedName, l *leaf) bool {
		return l.identity.UID.String() == store.Status.StoreUID
	})
	maps.DeleteFunc(k.given, func(_ types.NamespacedName, g *given) bool {
		return g.Identity.UID.String() == store.Status.StoreUID
	})
}

// OperatorFiles are a certificate by which the operator speaks to the processes of a store, with what it trusts, as the
// files of a folder. Where the operator issues it, it is in no Secret.
func (k *Keeper) OperatorFiles(ctx context.Context, store *v1alpha1.RecordStore, as *Authorities) (map[string][]byte,
	error) {
	status := store.Status.TLS
	told := StateOf(status).Told()
	of, err := StoreIdentity(store)
	if err != nil {
		return nil, err
	}
	if as.Issuer(told) != v1alpha1.TLSFromOperator {
		return k.givenOperatorFiles(ctx, store, as)
	}
	issuer, err := as.issuer(told, false)
	if err != nil {
		return nil, err
	}
	cert, key, err := issuer.Issue(authority.Leaf{
		Identity: identity.Identity{Store: of, Role: identity.Operator}, Server: true, Client: true, Now: k.Now(),
		Lifetime: leafLifetime,
	})
	if err != nil {
		return nil, err
	}
	bundle, clients := as.Bundles(told)
	return map[string][]byte{
		corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, workload.KeyBundle: bundle, workload.KeyClientBundle: clients,
		workload.KeyMode: []byte(status.Transport),
	}, nil
}

func (k *Keeper) known(key types.NamespacedName) *leaf {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leaves[key]
}

func (k *Keeper) remember(key types.NamespacedName, found *leaf, under string) {
	if found != nil && found.under != under {
		again := *found
		again.under = under
		found = &again
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leaves == nil {
		k.leaves = map[types.NamespacedName]*leaf{}
	}
	k.leaves[key] = found
}

// readLeaf reads the certificate of a Secret; nil: there is none that can be used.
func readLeaf(secret *corev1.Secret, issuer *authority.Authority, now time.Time) *leaf {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil
	}
	id, err := identity.OfCertificate(pair.Leaf)
	if err != nil {
		return nil
	}
	out := &leaf{
		identity: id, names: pair.Leaf.DNSNames, notBefore: pair.Leaf.NotBefore, notAfter: pair.Leaf.NotAfter, read: now,
		trusts: bundles{own: secret.Data[workload.KeyBundle], callers: secret.Data[workload.KeyClientBundle]},
		pairs:  pairsOf(secret.Data),
	}
	if other, err := tls.X509KeyPair(secret.Data[workload.KeyClientCert],
		secret.Data[workload.KeyClientKey]); err == nil && other.Leaf.NotAfter.Before(out.notAfter) {
		out.notAfter = other.Leaf.NotAfter // a process tells the end of the first
	}
	if issuer != nil && signedBy(pair.Leaf, issuer) {
		out.issuer = sha256.Sum256(issuer.CertificatePEM())
	}
	return out
}

func signedBy(cert *x509.Certificate, issuer *authority.Authority) bool {
	parents, err := certificatesOf(issuer.CertificatePEM())
	return err == nil && cert.CheckSignatureFrom(parents[0]) == nil && bytes.Equal(cert.RawIssuer, parents[0].RawSubject)
}

// good tells whether a certificate is as wanted, and not to be renewed yet.
func (l *leaf) good(want Leaf, issuer *authority.Authority, trusts bundles, now time.Time) bool {
	if l == nil || l.identity != want.Identity {
		return false
	}
	renew := l.notBefore.Add(l.notAfter.Sub(l.notBefore) / 3 * renewThirds)
	return l.issuer == sha256.Sum256(issuer.CertificatePEM()) && slices.Equal(l.names, want.DNSNames) &&
		now.Before(renew) &&
		(!want.caller() || l.trusts.equal(trusts))
}
