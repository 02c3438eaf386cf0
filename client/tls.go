package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"

	"sheaf.dev/sheaf/internal/security/reload"
)

// TLSFiles says by which files a caller and a store know each other; all in PEM.
type TLSFiles struct {
	CA        string // authorities of the store
	Cert, Key string // of the caller; both or none
}

// TLS gives credentials for Config.Credentials. The files are read now, and again for each connection: certificates may
// be renewed under a running process. Servers must show a certificate for the host that is dialled.
func TLS(files TLSFiles) (credentials.TransportCredentials, error) {
	return reload.Credentials(files.config)
}

func (f *TLSFiles) config() (*tls.Config, error) {
	fail := func(err error) (*tls.Config, error) { return nil, fmt.Errorf("TLS: %w", err) }
	if f.CA == "" {
		return fail(errors.New("no file with the authorities of the store is given"))
	}
	if (f.Cert == "") != (f.Key == "") {
		return fail(errors.New("give a certificate and its key, or neither"))
	}
	authorities, err := os.ReadFile(f.CA)
	if err != nil {
		return fail(err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()}
	if !cfg.RootCAs.AppendCertsFromPEM(authorities) {
		return fail(fmt.Errorf("%s holds no certificate in PEM", f.CA))
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return fail(fmt.Errorf("certificate %s and key %s: %w", f.Cert, f.Key, err))
		}
		// Also where the server names authorities that have not signed it: its answer says what is wrong then.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return cfg, nil
}
