package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"

	"sheaf.dev/sheaf/client/call/reload"
)

// TLSFiles names the files with which a caller and a store authenticate each other, in PEM format.
type TLSFiles struct {
	CA        string // file with the certificates of the store's authorities
	Cert, Key string // files with the caller's certificate and its key; set both or neither
}

// TLS returns credentials for Config.Credentials. TLS reads the files immediately, and again for each connection, so
// that certificates can be renewed while a process runs. If the files cannot be read for a connection, the last content
// remains in use, and if that connection fails, its error includes the read error. Servers must present a certificate
// for the dialled host.
func TLS(files TLSFiles) (credentials.TransportCredentials, error) {
	return reload.Credentials(files.config, nil)
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
		pair, err := reload.Pair(f.Cert, f.Key)
		if err != nil {
			return fail(err)
		}
		// The certificate is sent even if the server lists only authorities that have not signed it. Otherwise the
		// server's error would not show the real problem.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return cfg, nil
}
