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

	"sheaf.dev/sheaf/internal/identity"
)

// Files of a folder. Kubernetes mounts a Secret of these keys so.
const (
	CertificateFile = "tls.crt" // leaf, then what leads to the authority, in PEM
	KeyFile         = "tls.key"
	BundleFile      = "ca.crt" // authorities that peers are checked by
	// The certificate that is shown to servers, where it is another one: public authorities put one usage into each.
	ClientCertificateFile = "client.crt"
	ClientKeyFile         = "client.key"
)

// material is a set of files that go together. Never changed.
type material struct {
	identity       identity.Identity
	server, client *tls.Certificate // the same one, where one is for both
	roots          *x509.CertPool
	bundle         string    // see Status.Bundle
	notAfter       time.Time // of the certificate that ends first
	content        [sha256.Size]byte
}

// files are what a folder held at one moment; nil: not there.
type files map[string][]byte

// readFiles of a folder. The kubelet replaces a mounted Secret by one rename of the link ..data, and removes the folder
// that it led to before: all are read through one folder, which must still be the newest one afterwards.
func readFiles(dir string) (files, error) {
	for {
		at := newest(dir)
		found, err := readPlain(at)
		if newest(dir) == at {
			return found, err
		}
	}
}

// newest folder with the files of a folder: itself, where it is none that is replaced as a whole.
func newest(dir string) string {
	if there, err := filepath.EvalSymlinks(filepath.Join(dir, dataLink)); err == nil {
		return there
	}
	return dir
}

func readPlain(at string) (files, error) {
	out := files{}
	for _, name := range []string{CertificateFile, KeyFile, BundleFile, ClientCertificateFile, ClientKeyFile} {
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

// sum is the same for the same content.
func (f files) sum() [sha256.Size]byte {
	h := sha256.New()
	for _, name := range []string{CertificateFile, KeyFile, BundleFile, ClientCertificateFile, ClientKeyFile} {
		fmt.Fprintf(h, "%s %d %v\n", name, len(f[name]), f[name] != nil)
		h.Write(f[name])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// material checks that the files go together and are good at a moment. Errors name the file and what is wrong with it,
// and hold nothing of a key.
func (f files) material(now time.Time) (*material, error) {
	out := &material{content: f.sum()}
	var err error
	if out.roots, out.bundle, err = f.authorities(); err != nil {
		return nil, err
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
		as    string
	}{{CertificateFile, out.server, x509.ExtKeyUsageServerAuth, "servers"}, {clientFile(out), out.client, x509.ExtKeyUsageClientAuth, "clients"}} {
		if err := verify(chainOf(one.pair), out.roots, now, one.usage); err != nil {
			return nil, fmt.Errorf("%s: as a certificate of %s, by %s: %w", one.file, one.as, BundleFile, err)
		}
		id, err := identity.OfCertificate(one.pair.Leaf)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.file, err)
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

func clientFile(m *material) string {
	if m.client == m.server {
		return CertificateFile
	}
	return ClientCertificateFile
}

// pair reads a certificate and its key.
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

// authorities reads the bundle.
func (f files) authorities() (pool *x509.CertPool, hash string, err error) {
	if f[BundleFile] == nil {
		return nil, "", fmt.Errorf("%s is missing", BundleFile)
	}
	pool = x509.NewCertPool()
	var all [][]byte
	for rest := f[BundleFile]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if len(bytes.TrimSpace(rest)) > 0 {
				return nil, "", fmt.Errorf("%s: what follows its certificate %d is no PEM: is it half written?", BundleFile, len(all))
			}
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, "", fmt.Errorf("%s holds a block %q: only certificates belong there", BundleFile, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, "", fmt.Errorf("%s: certificate %d: %w", BundleFile, len(all)+1, err)
		}
		if !cert.IsCA {
			return nil, "", fmt.Errorf("%s: the certificate of %q is none of an authority", BundleFile, cert.Subject)
		}
		pool.AddCert(cert)
		all = append(all, cert.Raw)
	}
	if len(all) == 0 {
		return nil, "", fmt.Errorf("%s holds no certificate in PEM", BundleFile)
	}
	slices.SortFunc(all, bytes.Compare)
	h := sha256.New()
	for _, one := range slices.CompactFunc(all, bytes.Equal) {
		h.Write(one)
	}
	return pool, hex.EncodeToString(h.Sum(nil)), nil
}

func chainOf(pair *tls.Certificate) []*x509.Certificate {
	chain := []*x509.Certificate{pair.Leaf}
	for _, der := range pair.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil { // tls.X509KeyPair reads the leaf alone
			chain = append(chain, cert)
		}
	}
	return chain
}

// verify tells whether a chain, of which the leaf comes first, leads to an authority and is for that usage.
func verify(chain []*x509.Certificate, roots *x509.CertPool, now time.Time, usage x509.ExtKeyUsage) error {
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}
