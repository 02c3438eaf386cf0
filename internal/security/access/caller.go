package access

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/security/identity"
)

// Caller identifies who has made a call. The zero value stands for an unknown caller. A Caller is immutable.
type Caller struct {
	// text is the result of String. Gateways also forward the caller in this form. It is empty if the caller is
	// unknown.
	text     string
	subjects []Subject // all subjects by which a grant can name this caller
	// process means that the caller is a process of the store. It is false for members of etcd, because they never call
	// the other processes.
	process bool
	admin   bool // whether the certificate is that of an administrator
	// Expires is the time at which the caller's token expires. It is zero if the caller uses a certificate instead.
	Expires time.Time
}

// anybody is the subject that stands for every identified caller.
var anybody = Subject{Kind: Anybody}

// Certified returns the caller with the given identity. The code that calls Certified must first verify that the
// certificate with this identity belongs to the store.
func Certified(id identity.Identity) Caller {
	c := Caller{text: string(id.Role), process: id.IsComponent() && id.Role != identity.Etcd,
		admin: id.Role == identity.Admin}
	if id.Name != "" {
		c.text += "/" + url.PathEscape(id.Name)
	}
	if id.Role == identity.Client {
		c.subjects = []Subject{{Kind: Certificate, Name: id.Name}, anybody}
	}
	return c
}

// account returns the caller for a ServiceAccount of Kubernetes.
func account(namespace, name string) Caller {
	return Caller{
		text: accountText + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(name),
		subjects: []Subject{
			{Kind: ServiceAccount, Namespace: namespace, Name: name}, {Kind: ServiceAccounts, Namespace: namespace}, anybody,
		},
	}
}

// user returns the caller for a token of any other issuer. groups are the groups that the token claims.
func user(issuer, subject string, groups []string) Caller {
	c := Caller{
		text:     userText + "/" + url.PathEscape(issuer) + "/" + url.PathEscape(subject),
		subjects: make([]Subject, 0, 2+len(groups)),
	}
	c.subjects = append(c.subjects, Subject{Kind: OIDC, Issuer: issuer, Name: subject}, anybody)
	for _, group := range groups {
		c.text += "/" + url.PathEscape(group)
		c.subjects = append(c.subjects, Subject{Kind: OIDCGroup, Issuer: issuer, Name: group})
	}
	return c
}

const (
	accountText = "serviceaccount"
	userText    = "oidc"
	// CallerBytesMax limits the length of a caller's string, because that string is sent in a header of each forwarded
	// call.
	CallerBytesMax = 8 << 10
)

func (c *Caller) isShard() bool {
	return c.process && strings.HasPrefix(c.text, string(identity.Shard)+"/")
}

// isGateway reports whether the caller is a gateway of the store.
func (c *Caller) isGateway() bool { return c.process && c.text == string(identity.Gateway) }

// isArchiver reports whether the caller is the archiver of the store. The archiver always identifies itself by its
// certificate, because gateways do not forward its calls.
func (c *Caller) isArchiver() bool { return c.text == string(identity.Archive) }

// isEtcd reports whether the caller is a member of etcd. Such a member has no reason to call gateways or shards.
func (c *Caller) isEtcd() bool { return c.text == string(identity.Etcd) }

func (c *Caller) isKnown() bool { return c.text != "" }

// IsProcess reports whether the caller is a process of the store itself.
func (c *Caller) IsProcess() bool { return c.process }

// MayAll reports whether the caller is allowed everything without a grant. This applies to the store's processes, and
// to administrators who are identified by a certificate.
func (c *Caller) MayAll() bool { return c.process || c.admin }

// NeedsGrants reports whether the table of grants decides what the caller may do. The table does not matter for
// callers who may do everything, nor for the archiver.
func (c *Caller) NeedsGrants() bool { return !c.MayAll() && !c.isArchiver() }

// String returns the caller as one line, such as client/NAME, admin/NAME, serviceaccount/NAMESPACE/NAME or
// oidc/ISSUER/SUBJECT/GROUP.... Each part is escaped as in the path of a URL. For a process of the store, the line
// consists of its role and its name.
func (c *Caller) String() string {
	if c.text == "" {
		return "nobody"
	}
	return c.text
}

// ErrCaller means that a string does not identify a caller. ParseCaller wraps it in its errors.
var ErrCaller = errors.New("no caller")

// ParseCaller parses the result of Caller.String, which does not contain the expiry of a token. It returns an error
// for a member of etcd and for the archiver, because gateways never call on their behalf. Its errors wrap ErrCaller.
func ParseCaller(text string) (Caller, error) {
	if len(text) > CallerBytesMax {
		return Caller{}, fmt.Errorf("%w: it has %d bytes", ErrCaller, len(text))
	}
	parts := strings.Split(text, "/")
	for i := range parts {
		var err error
		if parts[i], err = url.PathUnescape(parts[i]); err != nil {
			return Caller{}, fmt.Errorf("%w: %.200q: %w", ErrCaller, text, err)
		}
	}
	c, rest := Caller{}, parts[1:]
	switch {
	case parts[0] == accountText && len(rest) == 2:
		c = account(rest[0], rest[1])
	case parts[0] == userText && len(rest) >= 2:
		c = user(rest[0], rest[1], rest[2:])
	case len(rest) < 2:
		id := identity.Identity{Role: identity.Role(parts[0])}
		if len(rest) == 1 {
			id.Name = rest[0]
		}
		single := slices.Contains([]identity.Role{identity.Gateway, identity.Operator}, id.Role)
		named := slices.Contains([]identity.Role{identity.Client, identity.Admin, identity.Shard}, id.Role)
		if !single && !named || named == (id.Name == "") {
			return Caller{}, fmt.Errorf("%w: %.200q", ErrCaller, text)
		}
		c = Certified(id)
	}
	if c.text != text || slices.Contains(rest[:min(2, len(rest))], "") {
		return Caller{}, fmt.Errorf("%w: %.200q", ErrCaller, text)
	}
	return c, nil
}
