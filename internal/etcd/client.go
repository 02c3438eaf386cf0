package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// ClientConfig says how to reach etcd.
type ClientConfig struct {
	Endpoints []string // host:port
	// CAFile holds the authorities that sign etcd's certificates; empty: those of the system. CertFile and KeyFile are this
	// process's certificate; both or none. With any of the three, TLS is used. The files are read again for each
	// connection, so that certificates can be rotated under a running process.
	CAFile, CertFile, KeyFile string
	// Username and PasswordFile for an etcd that asks for them; both or none. The password is read once.
	Username, PasswordFile string
}

// Dial makes a client for etcd. Files that cannot be read are an error; an etcd that does not answer is not, but with a
// Username, as etcd is asked for a token then.
func Dial(cfg ClientConfig) (*clientv3.Client, error) {
	c := clientv3.Config{
		Endpoints:            cfg.Endpoints,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
		Logger:               zap.NewNop(),
	}
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("connect to etcd: no endpoint is given: give host:port")
	}
	var err error
	if c.TLS, err = cfg.tls(); err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	if (cfg.Username == "") != (cfg.PasswordFile == "") {
		return nil, errors.New("connect to etcd: give a user name and a password file, or neither")
	}
	if cfg.Username != "" {
		password, err := os.ReadFile(cfg.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("connect to etcd: read the password: %w", err)
		}
		if c.Username, c.Password = cfg.Username, strings.TrimRight(string(password), "\r\n"); c.Password == "" {
			return nil, fmt.Errorf("connect to etcd: the password file %s is empty", cfg.PasswordFile)
		}
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(cfg.Endpoints, ", "), err)
	}
	return client, nil
}

// tls is nil where none of the files is given.
func (cfg *ClientConfig) tls() (*tls.Config, error) {
	if cfg.CAFile == "" && cfg.CertFile == "" && cfg.KeyFile == "" {
		return nil, nil
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("give a certificate file and a key file, or neither")
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		if _, err := readCA(cfg.CAFile); err != nil {
			return nil, err
		}
		// The chain is checked below, against the file as it is then: RootCAs could not be changed.
		out.InsecureSkipVerify = true
		out.VerifyConnection = func(state tls.ConnectionState) error { return verifyChain(cfg.CAFile, state) }
	}
	if cfg.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile); err != nil {
			return nil, fmt.Errorf("read the certificate %s and key %s: %w", cfg.CertFile, cfg.KeyFile, err)
		}
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
			return &pair, err
		}
	}
	return out, nil
}

func readCA(file string) (*x509.CertPool, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the certificates of etcd's authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}

// verifyChain does what crypto/tls does itself with RootCAs.
func verifyChain(caFile string, state tls.ConnectionState) error {
	roots, err := readCA(caFile)
	if err != nil {
		return err
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("etcd showed no certificate")
	}
	if state.ServerName == "" {
		return errors.New("the name of etcd is not known, so its certificate cannot be checked")
	}
	options := x509.VerifyOptions{Roots: roots, DNSName: state.ServerName, Intermediates: x509.NewCertPool()}
	for _, cert := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(cert)
	}
	_, err = state.PeerCertificates[0].Verify(options)
	return err
}
