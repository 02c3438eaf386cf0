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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/identity"
)

// trustDomain is the trust domain of the names that the operator issues. Each name contains the UID of its store, so
// that names of different clusters with the same domain do not collide.
const trustDomain = "cluster.local"

// lookAgain is the time after which a Secret with a good certificate is read again, because somebody may have changed
// or deleted it.
const lookAgain = 10 * time.Minute

// These are the errors that a Keeper returns.
var (
	// ErrNoAuthority means that the store has no Secret with authorities.
	ErrNoAuthority = errors.New("the Secret with the authorities of the store does not exist")
	// ErrOtherAuthority means that the Secret holds authorities other than those that the store's processes were
	// given.
	ErrOtherAuthority = errors.New("the Secret holds other authorities than those that the processes of the store " +
		"were given to trust")
	// ErrNotOurs means that a Secret of this name belongs to somebody else.
	ErrNotOurs = errors.New("it was not made by the operator")
)

// Keeper reads and writes the Secrets with the certificates of stores. Secrets are not cached, because the permission
// to list them is a permission to read all of them. Instead, a Keeper remembers for 10 minutes what it has read. Safe
// for concurrent use.
type Keeper struct {
	Client client.Client // writes
	Live   client.Reader // reads from the API server, not from a cache
	Now    func() time.Time

	mu     sync.Mutex
	leaves map[types.NamespacedName]*leaf  // by Secret; values are immutable
	given  map[types.NamespacedName]*given // by the Secret to which the certificates are copied; values are immutable
}

// leaf describes the certificate in a Secret, as it was when the Secret was last read.
type leaf struct {
	identity            identity.Identity
	names               []string // DNS names
	notBefore, notAfter time.Time
	issuer              [sha256.Size]byte // hash of the authority's certificate
	trusts              bundles           // authorities in the same Secret
	read                time.Time
	pairs               [sha256.Size]byte // hash of the certificates with their keys
	under               string            // result of underOf at the last successful check; empty if there was none
}

// underOf returns a string that identifies the issuing and the trusted authorities in a state. If a certificate was
// last checked with other authorities, it has to be checked again, and may have to be renewed.
func underOf(status *v1alpha1.TLSStatus) string {
	return fmt.Sprintf("%s %s %d", status.Bundle, status.ClientBundle, StateOf(status).InUse().IssueBy)
}

// bundles holds the authorities, in PEM, with which the owner of a certificate verifies its peers.
type bundles struct{ own, callers []byte }

func bundlesOf(as *Authorities, told InUse) (b bundles) {
	b.own, b.callers = as.Bundles(told)
	return b
}

func (b bundles) equal(other bundles) bool {
	return bytes.Equal(b.own, other.own) && bytes.Equal(b.callers, other.callers)
}

// Leaf describes a certificate that a Secret should hold.
type Leaf struct {
	Secret   string
	Identity identity.Identity
	DNSNames []string
	Owner    client.Object // owner of the Secret
}

// caller reports whether the certificate is for a caller rather than for a process of the store.
func (l *Leaf) caller() bool { return !l.Identity.IsComponent() }

// serves reports whether other processes connect to the owner of the certificate. The source of a restore has the
// identity of an archiver, to which nobody connects, but also has a name under which shards reach it.
func (l *Leaf) serves() bool { return l.Identity.Serves() || len(l.DNSNames) > 0 }

// ShardLeaf returns the Leaf of a shard.
func ShardLeaf(of identity.Store, pool *v1alpha1.ShardPool, shard string) Leaf {
	return Leaf{
		Secret: workload.ShardTLS(shard), Identity: identity.Identity{Store: of, Role: identity.Shard, Name: shard},
		DNSNames: workload.ShardNames(pool.Namespace, pool.Name, shard), Owner: pool,
	}
}

// ArchiveLeaf returns the Leaf of a store's archiver.
func ArchiveLeaf(of identity.Store, store *v1alpha1.RecordStore, archive *v1alpha1.RecordArchive) Leaf {
	return Leaf{Secret: workload.ArchiveTLS(store.Name), Identity: identity.Identity{Store: of, Role: identity.Archive},
		Owner: archive}
}

// RestoreLeaf returns the Leaf of the source from which a store is restored.
func RestoreLeaf(of identity.Store, store *v1alpha1.RecordStore) Leaf {
	return Leaf{Secret: workload.RestoreTLS(store.Name), Identity: identity.Identity{Store: of, Role: identity.Archive},
		DNSNames: workload.RestoreNames(store), Owner: store}
}

// StoreIdentity returns the store's identity, which is part of the identities of the store's processes.
func StoreIdentity(store *v1alpha1.RecordStore) (identity.Store, error) {
	id, err := uuid.Parse(store.Status.StoreUID)
	if err != nil {
		return identity.Store{}, fmt.Errorf("status.storeUID %q: %w", store.Status.StoreUID, err)
	}
	return identity.Store{Domain: trustDomain, Namespace: store.Namespace, UID: id}, nil
}

// StateOf returns the state that the status of a store records.
func StateOf(tls *v1alpha1.TLSStatus) State {
	s := State{Transport: tls.Transport, Phase: tls.Phase, Rotating: tls.Rotating, Rotated: tls.Rotated}
	if tls.Since != nil {
		s.Since = tls.Since.Time
	}
	return s
}

// Authorities reads the authorities of a store. If the status records which authorities the processes trust, the Secret
// must hold the same ones. It may return ErrNoAuthority or ErrOtherAuthority.
func (k *Keeper) Authorities(ctx context.Context, store *v1alpha1.RecordStore) (*Authorities, error) {
	key := types.NamespacedName{Namespace: store.Namespace, Name: workload.Authority(store.Name)}
	var secret corev1.Secret
	if there, err := step.Read(ctx, k.Live, "Secret", key, &secret); err != nil {
		return nil, err
	} else if !there {
		return nil, fmt.Errorf("secret %s: %w", key.Name, ErrNoAuthority)
	}
	as, err := parse(secret.Data)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w: %w", key.Name, ErrOtherAuthority, err)
	}
	status := store.Status.TLS
	if status == nil || status.Bundle == "" {
		return as, nil
	}
	bundle, clients, err := as.Hashes(StateOf(status).InUse())
	switch {
	case err != nil || bundle == status.Bundle && clients == status.ClientBundle:
	case as.isUnrecorded(status):
		as.unrecorded = true
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

// Ensure creates the certificate in a Secret if it is missing or differs from the wanted one, and renews it after two
// thirds of its lifetime. If the operator is not the source, Ensure copies the source's certificate to the Secret. It
// may return ErrNotOurs or a SourceError.
func (k *Keeper) Ensure(ctx context.Context, store *v1alpha1.RecordStore, as *Authorities, want Leaf) error {
	told := StateOf(store.Status.TLS).InUse()
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
	if _, err := step.Read(ctx, k.Live, "Secret", key, &secret); err != nil {
		return err
	}
	found := readLeaf(&secret, issuer, now)
	if err := checkOwner(store, &secret, found, want); err != nil {
		return err
	}
	if found.good(want, issuer, bundles, now) {
		k.remember(key, found, under)
		return nil
	}
	return k.issue(ctx, store, issuer, bundles, want)
}

// checkOwner returns nil if a Secret may be written: either it does not exist, or it was created for exactly this
// process. Otherwise it returns ErrNotOurs. The argument found is the certificate in the Secret.
func checkOwner(store *v1alpha1.RecordStore, secret *corev1.Secret, found *leaf, want Leaf) error {
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

// NotAfter returns when the newest certificate for a Secret expires, if the currently issuing authorities made it. It
// returns false if there is no such certificate yet, or if the time is unknown.
func (k *Keeper) NotAfter(store *v1alpha1.RecordStore, secret string) (time.Time, bool) {
	known := k.known(types.NamespacedName{Namespace: store.Namespace, Name: secret})
	if known == nil || known.under != underOf(store.Status.TLS) {
		return time.Time{}, false
	}
	return known.notAfter, true
}

// Forget drops the remembered certificates of a deleted store.
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

// Credentials keeps the credentials with which the operator connects to the processes of stores. internal/operator
// implements it.
type Credentials interface {
	// Set replaces the operator's credentials for the store namespace/name. The argument files maps the file names
	// tls.crt, tls.key, ca.crt, client-ca.crt and mode to their contents. New connections use them.
	Set(store string, files map[string][]byte) error
	// Forget removes the operator's credentials for a deleted store.
	Forget(store string)
}

// OperatorFiles returns the operator's certificate for connections to the processes of a store, together with the
// authorities that the operator trusts. The result maps file names to contents. If the operator issues this
// certificate itself, the certificate is not stored in a Secret.
func (k *Keeper) OperatorFiles(ctx context.Context, store *v1alpha1.RecordStore, as *Authorities) (map[string][]byte,
	error) {
	status := store.Status.TLS
	told := StateOf(status).InUse()
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

// readLeaf reads the certificate of a Secret. It returns nil if there is no usable one.
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
		// If the two certificates expire at different times, the earlier time is the one that a process reports.
		out.notAfter = other.Leaf.NotAfter
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

// good reports whether a certificate is as wanted and not yet due for renewal.
func (l *leaf) good(want Leaf, issuer *authority.Authority, trusts bundles, now time.Time) bool {
	if l == nil || l.identity != want.Identity {
		return false
	}
	renew := l.notBefore.Add(l.notAfter.Sub(l.notBefore) / 3 * renewThirds)
	return l.issuer == sha256.Sum256(issuer.CertificatePEM()) && slices.Equal(l.names, want.DNSNames) &&
		now.Before(renew) &&
		(!want.caller() || l.trusts.equal(trusts))
}
