package certs

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/security/identity"
)

// These are the names of the files in a certificate folder. When Kubernetes mounts a Secret with these keys, the
// result is such a folder.
const (
	CertificateFile = "tls.crt" // the leaf and then its chain up to the authority, in PEM
	KeyFile         = "tls.key"
	BundleFile      = "ca.crt" // authorities with which peers are verified, in PEM
	// ClientBundleFile contains the authorities of callers, if they differ from those in BundleFile. The authorities in
	// BundleFile are then trusted only for the store's own processes.
	ClientBundleFile = "client-ca.crt"
	// ModeFile contains a Mode as text.
	ModeFile = "mode"
	// ClientCertificateFile contains the certificate that the process presents to servers, if that is not the one in
	// CertificateFile. Two certificates may be necessary, because public authorities permit only one usage in each.
	ClientCertificateFile = "client.crt"
	ClientKeyFile         = "client.key"
)

// Mode says which protocol a process uses. To switch a running store to TLS or back, the mode is changed in several
// steps.
type Mode string

// These are the modes.
const (
	Required  Mode = "required"  // only TLS; the default if there is no ModeFile
	Both      Mode = "both"      // outgoing connections use TLS, and incoming ones may also be plaintext
	Plaintext Mode = "plaintext" // outgoing connections are plaintext, and incoming ones may also use TLS
)

// GrantsFile is the name of the file that says whether the store must have a table of grants. It must if the file
// contains the word GrantsRequired. If a process then finds no table, because the first table has not been written yet
// or because etcd was lost, it admits only administrators and the store's own processes. Without the file, a store
// that has no table is open to all its callers.
const GrantsFile = "grants"

// GrantsRequired is the only valid content of GrantsFile.
const GrantsRequired = "required"

// fileNames lists the names of all files that a folder can contain.
var fileNames = []string{CertificateFile, KeyFile, BundleFile, ClientBundleFile, ClientCertificateFile, ClientKeyFile,
	ModeFile, GrantsFile}

// material is a consistent set of parsed files. It is immutable.
type material struct {
	identity       identity.Identity
	mode           Mode
	server, client *tls.Certificate // both point to the same certificate if there is only one
	// own contains the authorities of the store's own processes, and callers contains those of callers. Both are the
	// same if there is only one bundle.
	own, callers   authorities
	all            *x509.CertPool // authorities in own and in callers
	notAfter       time.Time      // expiry of the certificate that expires first
	content        [sha256.Size]byte
	grantsRequired bool
}

// files holds the contents of a folder's files, by name, as of one moment. A missing file has nil content.
type files map[string][]byte

// readFiles reads the files in a folder. When the kubelet replaces a mounted Secret, it renames the link ..data once,
// and deletes the link's previous target. Therefore readFiles reads all files from one target, and afterwards checks
// that this target is still the newest.
func readFiles(dir string) (files, error) {
	for {
		at := newest(dir)
		found, err := readPlain(at)
		if newest(dir) == at {
			return found, err
		}
	}
}

// newest returns the current target of the folder's link ..data, which is where the files are. If there is no such
// link, it returns the folder itself.
func newest(dir string) string {
	if there, err := filepath.EvalSymlinks(filepath.Join(dir, dataLink)); err == nil {
		return there
	}
	return dir
}

func readPlain(at string) (files, error) {
	out := files{}
	for _, name := range fileNames {
		content, err := os.ReadFile(filepath.Join(at, name))
		switch {
		case err == nil:
			out[name] = content
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return out, nil
}

// sum returns a hash of all files.
func (f files) sum() [sha256.Size]byte {
	h := sha256.New()
	for _, name := range fileNames {
		fmt.Fprintf(h, "%s %d %v\n", name, len(f[name]), f[name] != nil)
		h.Write(f[name])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// material parses the files. It returns an error if they do not fit together, or are not valid at the given time. The
// error names the file and its problem, and contains no part of a key.
func (f files) material(now time.Time) (*material, error) {
	out := &material{content: f.sum(), all: x509.NewCertPool()}
	var err error
	if out.mode, err = f.mode(); err != nil {
		return nil, err
	}
	if out.grantsRequired, err = f.grants(); err != nil {
		return nil, err
	}
	if out.own, err = f.authorities(BundleFile); err != nil {
		return nil, err
	}
	out.callers = out.own
	if f[ClientBundleFile] != nil {
		if out.callers, err = f.authorities(ClientBundleFile); err != nil {
			return nil, err
		}
	}
	for _, cert := range slices.Concat(out.own.certs, out.callers.certs) {
		out.all.AddCert(cert)
	}
	if out.server, err = f.pair(CertificateFile, KeyFile); err != nil {
		return nil, err
	}
	out.client = out.server
	if f[ClientCertificateFile] != nil || f[ClientKeyFile] != nil {
		if out.client, err = f.pair(ClientCertificateFile, ClientKeyFile); err != nil {
			return nil, err
		}
	}
	for _, one := range []struct {
		file  string
		pair  *tls.Certificate
		usage x509.ExtKeyUsage
	}{{CertificateFile, out.server, x509.ExtKeyUsageServerAuth},
		{clientFile(out), out.client, x509.ExtKeyUsageClientAuth}} {
		id, err := identity.OfCertificate(one.pair.Leaf)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.file, err)
		}
		if by, err := out.verify(chainOf(one.pair), now, one.usage); err != nil &&
			(one.usage != x509.ExtKeyUsageServerAuth || id.Serves()) {
			return nil, fmt.Errorf("%s: as a certificate of %s, by %s: %w", one.file, usageWords[one.usage], by, err)
		}
		if out.identity == (identity.Identity{}) {
			out.identity, out.notAfter = id, one.pair.Leaf.NotAfter
		}
		if id != out.identity {
			return nil, fmt.Errorf("%s names %s, and %s names %s", CertificateFile, out.identity, one.file, id)
		}
		if one.pair.Leaf.NotAfter.Before(out.notAfter) {
			out.notAfter = one.pair.Leaf.NotAfter
		}
	}
	return out, nil
}

// Check returns an error unless a certificate and its key can be used for all given usages at the given time. The
// arguments certificate, key and bundle are names of files in content, and the file bundle contains the authorities.
// Errors name the file and its problem, and contain no part of a key. Check does not examine the certificate's
// identity and hosts. That is left to its caller.
func Check(content map[string][]byte, certificate, key, bundle string, now time.Time,
	usages ...x509.ExtKeyUsage) (*x509.Certificate, error) {
	f := files(content)
	trusted, err := f.authorities(bundle)
	if err != nil {
		return nil, err
	}
	pair, err := f.pair(certificate, key)
	if err != nil {
		return nil, err
	}
	if _, err := identity.OfCertificate(pair.Leaf); err != nil {
		return nil, fmt.Errorf("%s: %w", certificate, err)
	}
	for _, usage := range usages {
		if err := verify(chainOf(pair), trusted.pool, now, usage); err != nil {
			return nil, fmt.Errorf("%s: as a certificate of %s, by %s: %w", certificate, usageWords[usage], bundle, err)
		}
	}
	return pair.Leaf, nil
}

// usageWords says, for error messages, which processes present a certificate with a given usage.
var usageWords = map[x509.ExtKeyUsage]string{x509.ExtKeyUsageServerAuth: "servers",
	x509.ExtKeyUsageClientAuth: "clients"}

func clientFile(m *material) string {
	if m.client == m.server {
		return CertificateFile
	}
	return ClientCertificateFile
}

// pair parses a certificate and its key from the named files.
func (f files) pair(certificate, key string) (*tls.Certificate, error) {
	for _, name := range []string{certificate, key} {
		if f[name] == nil {
			return nil, fmt.Errorf("%s is missing", name)
		}
	}
	pair, err := tls.X509KeyPair(f[certificate], f[key])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", certificate, key, err)
	}
	return &pair, nil
}

// mode reads ModeFile. If the file does not exist, it returns Required.
func (f files) mode() (Mode, error) {
	if f[ModeFile] == nil {
		return Required, nil
	}
	mode := Mode(bytes.TrimSpace(f[ModeFile]))
	if !slices.Contains([]Mode{Required, Both, Plaintext}, mode) {
		return "", fmt.Errorf("%s holds %.40q: it must be %s, %s or %s", ModeFile, string(mode), Required, Both, Plaintext)
	}
	return mode, nil
}

// grants reads GrantsFile, and reports whether callers must wait if there is no table of grants.
func (f files) grants() (required bool, err error) {
	if f[GrantsFile] == nil {
		return false, nil
	}
	if word := string(bytes.TrimSpace(f[GrantsFile])); word != GrantsRequired {
		return false, fmt.Errorf("%s holds %.40q: it must be %s", GrantsFile, word, GrantsRequired)
	}
	return true, nil
}

// authorities holds the certificates of the authorities in one bundle.
type authorities struct {
	file  string
	certs []*x509.Certificate
	pool  *x509.CertPool
	hash  string // BundleHash of the certificates
}

// authorities parses the bundle in the named file.
func (f files) authorities(file string) (authorities, error) {
	out := authorities{file: file, pool: x509.NewCertPool()}
	if f[file] == nil {
		return out, fmt.Errorf("%s is missing", file)
	}
	for rest := f[file]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if len(bytes.TrimSpace(rest)) > 0 {
				return out, fmt.Errorf("%s: what follows its certificate %d is no PEM: is it half written?", file, len(out.certs))
			}
			break
		}
		if block.Type != "CERTIFICATE" {
			return out, fmt.Errorf("%s holds a block %q: only certificates belong there", file, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return out, fmt.Errorf("%s: certificate %d: %w", file, len(out.certs)+1, err)
		}
		if !cert.IsCA {
			return out, fmt.Errorf("%s: the certificate of %q is none of an authority", file, cert.Subject)
		}
		out.pool.AddCert(cert)
		out.certs = append(out.certs, cert)
	}
	if len(out.certs) == 0 {
		return out, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	out.hash = BundleHash(out.certs)
	return out, nil
}

// BundleHash returns the SHA-256 of a set of authorities, in hex. It does not depend on their order, and ignores
// duplicates.
func BundleHash(certs []*x509.Certificate) string {
	all := make([][]byte, 0, len(certs))
	for _, cert := range certs {
		all = append(all, cert.Raw)
	}
	slices.SortFunc(all, bytes.Compare)
	h := sha256.New()
	for _, one := range slices.CompactFunc(all, bytes.Equal) {
		h.Write(one)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// verify checks whether a chain is trusted for the given usage. If the leaf identifies a process of the store, the
// chain must lead to an authority of the store's processes. Otherwise it must lead to an authority of callers. The
// result by is the name of the file with these authorities.
func (m *material) verify(chain []*x509.Certificate, now time.Time, usage x509.ExtKeyUsage) (by string, err error) {
	id, err := identity.OfCertificate(chain[0])
	if err != nil {
		return m.own.file, err
	}
	trusted := m.callers
	if id.IsComponent() {
		trusted = m.own
	}
	return trusted.file, verify(chain, trusted.pool, now, usage)
}

func chainOf(pair *tls.Certificate) []*x509.Certificate {
	chain := []*x509.Certificate{pair.Leaf}
	for _, der := range pair.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil { // tls.X509KeyPair has parsed only the leaf
			chain = append(chain, cert)
		}
	}
	return chain
}

// verify checks whether a chain leads to one of the roots and permits the usage. The first certificate in the chain
// is the leaf.
func verify(chain []*x509.Certificate, roots *x509.CertPool, now time.Time, usage x509.ExtKeyUsage) error {
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}
