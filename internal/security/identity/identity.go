// Package identity names the processes of a store. A name is the URI of a certificate, in the shape of SPIFFE
// (github.com/spiffe/spiffe, SPIFFE-ID and X509-SVID):
//
//	spiffe://DOMAIN/ns/NAMESPACE/store/UID/gateway
//	spiffe://DOMAIN/ns/NAMESPACE/store/UID/shard/NAME
//	spiffe://DOMAIN/ns/NAMESPACE/store/UID/etcd
//	spiffe://DOMAIN/ns/NAMESPACE/store/UID/operator
//	spiffe://DOMAIN/ns/NAMESPACE/store/UID/archive
//	spiffe://DOMAIN/ns/NAMESPACE/store/UID/client/NAME
//	spiffe://DOMAIN/ns/NAMESPACE/store/UID/admin/NAME
//
// A process verifies its peer by this name, and not by a host name or an address, because another pod may have the same
// host name or address later.
package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Role is the function of a process in its store.
type Role string

// These are the roles. Each shard, client and administrator has a name of its own. All gateways of a store have the
// same name, and so do all members of its etcd. The operator has one name, and so has the archiver.
const (
	Gateway  Role = "gateway"
	Operator Role = "operator"
	Shard    Role = "shard"
	Etcd     Role = "etcd"
	// Archive is the role of the archiver, which copies the store into a bucket. The archiver counts as a caller, and
	// not as a part of the store.
	Archive Role = "archive"
	Client  Role = "client" // a caller that is not part of the store
	Admin   Role = "admin"  // a caller that may also administer the store
)

func (r Role) isNamed() bool { return r == Shard || r == Client || r == Admin }

var roles = []Role{Gateway, Operator, Shard, Etcd, Archive, Client, Admin}

// Store identifies the store to which an identity belongs. It is comparable.
type Store struct {
	Domain    string // trust domain: lower case letters, digits, dots, dashes and underscores
	Namespace string
	UID       uuid.UUID
}

// Identity identifies a process. It is comparable.
type Identity struct {
	Store
	Role Role
	Name string // name of a shard, client or administrator; empty for other roles
}

// IsComponent reports whether the identity belongs to a part of the store, and not to a caller. The archiver counts
// as a caller: it may read all records, but may neither change anything nor use the store's etcd.
func (i Identity) IsComponent() bool {
	return i.Role == Gateway || i.Role == Operator || i.Role == Shard || i.Role == Etcd
}

// Serves reports whether other processes connect to a process with this identity. A process to which nobody connects
// presents its certificate only to servers.
func (i Identity) Serves() bool { return i.Role == Gateway || i.Role == Shard || i.Role == Etcd }

// ErrName means that a name does not identify a process of a store. All errors about such names wrap it.
var ErrName = errors.New("not the name of a process of a store")

// ID returns the identity as a SPIFFE ID. If Parse would not accept the identity, ID returns an error.
func (i Identity) ID() (spiffeid.ID, error) {
	domain, err := spiffeid.TrustDomainFromString(i.Domain)
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("%w: domain %q: %w", ErrName, i.Domain, err)
	}
	path := []string{"ns", i.Namespace, "store", i.UID.String(), string(i.Role)}
	if i.Role.isNamed() {
		path = append(path, i.Name)
	}
	id, err := spiffeid.FromSegments(domain, path...)
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("%w: %s of namespace %q: %w", ErrName, i.Role, i.Namespace, err)
	}
	if back, err := of(id); err != nil || back != i {
		return spiffeid.ID{}, fmt.Errorf("%w: %q %q of store %s in namespace %q", ErrName, i.Role, i.Name, i.UID, i.Namespace)
	}
	return id, nil
}

// String returns the URI of the identity, or an error message if the identity is invalid.
func (i Identity) String() string {
	id, err := i.ID()
	if err != nil {
		return err.Error()
	}
	return id.String()
}

// Parse returns the identity that a URI names. Errors wrap ErrName.
func Parse(uri string) (Identity, error) {
	id, err := spiffeid.FromString(uri)
	if err != nil {
		return Identity{}, fmt.Errorf("%w: %q: %w", ErrName, uri, err)
	}
	return of(id)
}

func of(id spiffeid.ID) (Identity, error) {
	parts := strings.Split(strings.TrimPrefix(id.Path(), "/"), "/")
	if len(parts) < 5 || parts[0] != "ns" || parts[2] != "store" {
		return Identity{}, fmt.Errorf("%w: %s: must be spiffe://DOMAIN/ns/NAMESPACE/store/UID/ROLE", ErrName, id)
	}
	uid, err := uuid.Parse(parts[3])
	if err != nil || uid == uuid.Nil || uid.String() != parts[3] {
		return Identity{}, fmt.Errorf("%w: %s: %q is not the UID of a store", ErrName, id, parts[3])
	}
	i := Identity{Store: Store{Domain: id.TrustDomain().Name(), Namespace: parts[1], UID: uid}, Role: Role(parts[4])}
	switch {
	case !slices.Contains(roles, i.Role):
		return Identity{}, fmt.Errorf("%w: %s: there is no role %q", ErrName, id, i.Role)
	case i.Role.isNamed() && len(parts) == 6:
		i.Name = parts[5]
	case i.Role.isNamed() || len(parts) != 5:
		return Identity{}, fmt.Errorf("%w: %s: a %s has %s", ErrName, id, i.Role,
			map[bool]string{true: "one name", false: "no name"}[i.Role.isNamed()])
	}
	return i, nil
}

// OfCertificate returns the identity in a certificate. It returns an error unless the certificate has exactly one URI
// and this URI is an identity. It does not check anything else. Its errors wrap ErrName.
func OfCertificate(cert *x509.Certificate) (Identity, error) {
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("%w: the certificate of %q has %d URIs instead of one", ErrName, cert.Subject,
			len(cert.URIs))
	}
	return Parse(cert.URIs[0].String())
}
