package access

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table says who may do what in a store. A store has at most one table, which is kept in etcd. Without a table, every
// caller with a certificate of the store may use all records, as described in docs/security.md. With a table, only
// what is granted is allowed, except to the store's own processes and to administrators who are identified by a
// certificate.
type Table struct {
	// Version is above 0, and grows by one each time that the table is replaced.
	Version int64 `json:"version"`
	// Audience is the audience that tokens must have. It must be set if there are Issuers.
	Audience string   `json:"audience,omitempty"`
	Grants   []Grant  `json:"grants"`
	Issuers  []Issuer `json:"issuers,omitempty"`
	// Tenants have quotas, which apply to the groups with their prefixes. Being a tenant grants no rights.
	Tenants []Tenant `json:"tenants,omitempty"`
}

// Grant allows each of its subjects to use each of its verbs in each of its groups.
type Grant struct {
	// Name identifies the grant in errors and in the audit log. It has 1 to 253 bytes and is unique in the table.
	Name     string    `json:"name"`
	Subjects []Subject `json:"subjects"`
	Verbs    []Verb    `json:"verbs"`
	Groups   Groups    `json:"groups"`
}

// Groups says to which groups a grant applies: either to all groups, or to those that have one of the names or begin
// with one of the prefixes.
type Groups struct {
	All      bool     `json:"all,omitempty"`
	Names    []string `json:"names,omitempty"`
	Prefixes []string `json:"prefixes,omitempty"`
}

// SubjectKind says how a subject is recognized.
type SubjectKind string

// These are the kinds of subjects. The comment on each kind names the fields of Subject that the kind uses.
const (
	Certificate SubjectKind = "Certificate" // uses Name; the certificate's URI ends in client/NAME
	// ServiceAccount uses Namespace and Name, which must match the ServiceAccount in a token. The token's issuer must
	// have ServiceAccounts set.
	ServiceAccount  SubjectKind = "ServiceAccount"
	ServiceAccounts SubjectKind = "ServiceAccounts" // uses Namespace; matches all ServiceAccounts in it
	OIDC            SubjectKind = "OIDC"            // uses Issuer and Name, which is the subject of a token
	OIDCGroup       SubjectKind = "OIDCGroup"       // uses Issuer and Name, which is a group in a token
	// Anybody stands for every caller that is identified by a certificate or a token. It uses no fields.
	Anybody SubjectKind = "Anybody"
)

// Subject describes the callers to which a grant applies. It is comparable.
type Subject struct {
	Kind      SubjectKind `json:"kind"`
	Issuer    string      `json:"issuer,omitempty"`
	Namespace string      `json:"namespace,omitempty"`
	Name      string      `json:"name,omitempty"`
}

// Issuer is an issuer of tokens. Its keys are part of the table, so tokens can be verified without asking the issuer.
type Issuer struct {
	// URL is the issuer's name in the iss claim of tokens.
	URL string `json:"url"`
	// ServiceAccounts means that this issuer's tokens belong to ServiceAccounts of Kubernetes.
	ServiceAccounts bool `json:"serviceAccounts,omitempty"`
	// Audiences are the audiences that are accepted in this issuer's tokens. A token must have one of them. The default
	// is the table's audience.
	Audiences []string `json:"audiences,omitempty"`
	// GroupsClaim is the name of the claim that lists the subject's groups. The default is "groups". GroupsClaim is not
	// used for ServiceAccounts.
	GroupsClaim string `json:"groupsClaim,omitempty"`
	// Keys is a JSON Web Key Set (RFC 7517). It contains public keys for ES256 and RS256, each of which has a key id.
	Keys json.RawMessage `json:"keys"`
}

// These are the limits of a table.
const (
	// TableBytesMax limits the size of a table's JSON, because etcd rejects values above 1.5 MiB.
	TableBytesMax   = 1_400_000
	nameBytesMax    = 253
	issuersMax      = 16
	audiencesMax    = 16   // maximum number of audiences of an issuer
	subjectsMax     = 1000 // maximum number of subjects of a grant
	groupsMax       = 1000 // maximum number of names and prefixes of a grant
	textBytesMax    = 2048 // maximum length of a URL, an audience or a subject
	defaultGroups   = "groups"
	keysBytesMax    = 64 << 10
	audienceExample = "sheaf/NAMESPACE/STORE"
)

// ErrTable means that a table is not valid. All errors about tables wrap it.
var ErrTable = errors.New("no valid table of grants")

// ParseTable reads and validates the JSON of a table. It rejects unknown fields, because such a field might be meant
// to restrict rights. Its errors wrap ErrTable, and name the field and its value.
func ParseTable(text []byte) (*Table, error) {
	t, err := decode(text)
	if err == nil {
		_, err = Compile(t)
	}
	return t, err
}

// CompileText does the same as ParseTable followed by Compile, but validates the table only once.
func CompileText(text []byte) (*Compiled, error) {
	t, err := decode(text)
	if err != nil {
		return nil, err
	}
	return Compile(t)
}

// ParseNext reads a table that is going to replace another one. The argument before is the version of the table to be
// replaced, or 0 if there is none, and the version in text must be the same. In the result, the version is higher by
// one. ParseNext leaves the validation of the table's content to Encode. Apart from that, it returns the same errors
// as ParseTable.
func ParseNext(text []byte, before int64) (*Table, error) {
	t, err := decode(text)
	switch {
	case err != nil:
		return nil, err
	case t.Version != before:
		return nil, bad("version", "is %d, and the store has %d: read the table, and change that one", t.Version, before)
	}
	t.Version++
	return t, nil
}

func decode(text []byte) (*Table, error) {
	if len(text) > TableBytesMax {
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrTable, len(text), TableBytesMax)
	}
	t := &Table{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(t); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTable, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows the table", ErrTable)
	}
	return t, nil
}

// Encode returns the JSON of a valid table. It returns the same errors as ParseTable.
func (t *Table) Encode() ([]byte, error) {
	if _, err := Compile(t); err != nil {
		return nil, err
	}
	out, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTable, err)
	}
	if len(out) > TableBytesMax {
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrTable, len(out), TableBytesMax)
	}
	return out, nil
}

// bad returns an error about a field of a table.
func bad(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrTable, field, fmt.Sprintf(format, args...))
}

// text validates a required string.
func text(field, value string, bytesMax int) error {
	switch {
	case value == "":
		return bad(field, "is required")
	case len(value) > bytesMax:
		return bad(field, "%.40q... has %d bytes: give at most %d", value, len(value), bytesMax)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return bad(field, "%.80q has bytes that are no text", value)
	}
	return nil
}

// validate checks a subject. The argument issuers contains the table's issuers by URL.
func (s Subject) validate(field string, issuers map[string]*issuer) error {
	// For each kind, the array says whether an issuer, a namespace and a name are required.
	need := map[SubjectKind][3]bool{
		Certificate: {false, false, true}, ServiceAccount: {false, true, true}, ServiceAccounts: {false, true, false},
		OIDC: {true, false, true}, OIDCGroup: {true, false, true}, Anybody: {},
	}
	fields, known := need[s.Kind]
	if !known {
		return bad(field+".kind", "%.80q: must be Certificate, ServiceAccount, ServiceAccounts, OIDC, OIDCGroup or Anybody",
			s.Kind)
	}
	for i, f := range []struct{ name, value string }{{".issuer", s.Issuer}, {".namespace", s.Namespace},
		{".name", s.Name}} {
		if fields[i] {
			if err := text(field+f.name, f.value, textBytesMax); err != nil {
				return err
			}
		} else if f.value != "" {
			return bad(field+f.name, "is %.80q, and a subject of kind %s has none", f.value, s.Kind)
		}
	}
	if of, known := issuers[s.Issuer]; s.Issuer != "" && (!known || of.serviceAccounts) {
		return bad(field+".issuer", "%.200q is no issuer of this table whose subjects are named by OIDC", s.Issuer)
	}
	return nil
}

func (g *Groups) validate(field string) error {
	given := len(g.Names) + len(g.Prefixes)
	switch {
	case g.All && given > 0:
		return bad(field, "has all, so that it needs no names and prefixes: leave one of them out")
	case !g.All && given == 0:
		return bad(field, "names no group: give all, names or prefixes")
	case given > groupsMax:
		return bad(field, "has %d names and prefixes: give at most %d, and the others in another grant", given, groupsMax)
	}
	for i, name := range g.Names {
		if err := text(fmt.Sprintf("%s.names[%d]", field, i), name, nameBytesMax); err != nil {
			return err
		}
	}
	for i, prefix := range g.Prefixes {
		if err := text(fmt.Sprintf("%s.prefixes[%d]", field, i), prefix, nameBytesMax); err != nil {
			return err
		}
	}
	return nil
}
