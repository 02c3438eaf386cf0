package clienttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

// tlsFiles writes the certificate files of a caller to a new folder.
func tlsFiles(t *testing.T) client.TLSFiles {
	t.Helper()
	a, err := authority.New("a", time.Now(), time.Hour)
	must.OK(t, err)
	id := identity.Identity{Store: identity.Store{Domain: "d", Namespace: "n", UID: uuid.New()}, Role: identity.Client,
		Name: "c"}
	cert, key, err := a.Issue(authority.Leaf{Identity: id, Client: true, Now: time.Now(), Lifetime: time.Hour})
	must.OK(t, err)
	dir := t.TempDir()
	out := client.TLSFiles{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	for file, content := range map[string][]byte{out.CA: a.CertificatePEM(), out.Cert: cert, out.Key: key} {
		must.OK(t, os.WriteFile(file, content, 0o600))
	}
	return out
}

func TestTLSFiles(t *testing.T) {
	good, other := tlsFiles(t), tlsFiles(t)
	if _, err := client.TLS(good); err != nil {
		t.Fatal(err)
	}
	// This client has no certificate, and identifies itself in another way.
	if _, err := client.TLS(client.TLSFiles{CA: good.CA}); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*client.TLSFiles)
		says   string
	}{
		"no authorities":      {func(f *client.TLSFiles) { f.CA = "" }, "no file with the authorities"},
		"no key":              {func(f *client.TLSFiles) { f.Key = "" }, "a certificate and its key, or neither"},
		"no certificate":      {func(f *client.TLSFiles) { f.Cert = "" }, "a certificate and its key, or neither"},
		"missing":             {func(f *client.TLSFiles) { f.CA += "x" }, "no such file"},
		"a key for authority": {func(f *client.TLSFiles) { f.CA = f.Key }, "holds no certificate"},
		"another key":         {func(f *client.TLSFiles) { f.Key = other.Key }, "private key does not match"},
	} {
		bad := good
		tt.change(&bad)
		if _, err := client.TLS(bad); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
