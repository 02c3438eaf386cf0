package dev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/shard"
)

// These are folders below the store's folder. They exist if Config.TLS is set.
const (
	tlsName       = "tls"
	authorityName = "authority" // certificate and key of the store's authority
	gatewayName   = "gateway"
	callerName    = "admin"   // certificate and key for callers of the store
	archiveName   = "archive" // certificate and key for the archiver of the store
)

// secured manages the certificates of a store with Config.TLS. It is nil if the store uses plaintext.
type secured struct {
	dir       string
	authority *authority.Authority
	store     identity.Store
	registry  prometheus.Registerer
	issued    []holder
	sources   []*certs.Source
	guards    []*guard.Guard
	seams     seams
}

// holder describes a process or a caller whose certificate is in a subfolder of its own.
type holder struct {
	folder   string
	identity identity.Identity
	hosts    []string // names and addresses by which callers reach the process
}

// secure creates a certificate for the callers of a store. When called for a new store, it also creates the authority
// of the store.
func secure(dir string, store uuid.UUID, registry prometheus.Registerer, seams seams) (*secured, error) {
	s := &secured{dir: dir, registry: registry, seams: seams, store: identity.Store{Domain: "sheaf.dev",
		Namespace: storeName, UID: store}}
	var err error
	if s.authority, err = openAuthority(filepath.Join(dir, authorityName), time.Now()); err != nil {
		return nil, err
	}
	if err := s.issue(holder{folder: archiveName, identity: identity.Identity{Role: identity.Archive}}); err != nil {
		return nil, err
	}
	return s, s.issue(holder{folder: callerName, identity: identity.Identity{Role: identity.Admin, Name: storeName}})
}

// openAuthority reads the authority in a folder, or creates it.
func openAuthority(dir string, now time.Time) (*authority.Authority, error) {
	cert, errCert := os.ReadFile(filepath.Join(dir, certs.CertificateFile))
	key, errKey := os.ReadFile(filepath.Join(dir, certs.KeyFile))
	if errors.Is(errCert, fs.ErrNotExist) && errors.Is(errKey, fs.ErrNotExist) {
		made, err := authority.New("sheaf "+storeName, now, authority.Lifetime)
		if err != nil {
			return nil, err
		}
		if cert, key, err = made.PEM(); err != nil {
			return nil, err
		}
		return made, certs.Install(dir, map[string][]byte{certs.CertificateFile: cert, certs.KeyFile: key})
	}
	if err := errors.Join(errCert, errKey); err != nil {
		return nil, fmt.Errorf("reading the authority of the store: %w", err)
	}
	a, err := authority.Parse(cert, key)
	if err == nil && now.After(a.NotAfter()) {
		err = fmt.Errorf("it has ended on %s", a.NotAfter().Format(time.DateOnly))
	}
	if err != nil {
		return nil, fmt.Errorf(
			"the authority in %s: %w (remove the folder for a new one; callers then need its certificates)", dir, err)
	}
	return a, nil
}

// issue writes a new certificate into the folder of its holder, with the authorities that verify peers.
func (s *secured) issue(h holder) error {
	h.identity.Store = s.store
	leaf := authority.Leaf{Identity: h.identity, Server: h.identity.IsComponent(), Client: true, Now: time.Now(),
		Lifetime: authority.LeafLifetime}
	for _, host := range h.hosts {
		if address := net.ParseIP(host); address != nil {
			leaf.Addresses = append(leaf.Addresses, address)
		} else if host != "" {
			leaf.DNSNames = append(leaf.DNSNames, host)
		}
	}
	cert, key, err := s.authority.Issue(leaf)
	if err != nil {
		return err
	}
	if err := certs.Install(filepath.Join(s.dir, h.folder), map[string][]byte{
		certs.CertificateFile: cert, certs.KeyFile: key, certs.BundleFile: s.authority.CertificatePEM(),
	}); err != nil {
		return err
	}
	if !slices.ContainsFunc(s.issued, func(other holder) bool { return other.folder == h.folder }) {
		s.issued = append(s.issued, h)
	}
	return nil
}

// open returns the certificates of a part of the store.
func (s *secured) open(h holder, logger *slog.Logger) (*certs.Source, error) {
	if err := s.issue(h); err != nil {
		return nil, err
	}
	source, err := certs.Open(certs.Config{Dir: filepath.Join(s.dir, h.folder), Every: s.seams.look,
		Logger: logger.With("process", h.folder)})
	if err != nil {
		return nil, err
	}
	s.sources = append(s.sources, source)
	prometheus.WrapRegistererWith(prometheus.Labels{"process": h.folder}, s.registry).MustRegister(source.Collectors()...)
	return source, nil
}

// keep renews all certificates each time that a third of their lifetime has passed, until ctx ends.
func (s *secured) keep(ctx context.Context, logger *slog.Logger) {
	for {
		select {
		case <-time.After(authority.LeafLifetime / 3):
		case <-ctx.Done():
			return
		}
		for _, h := range s.issued {
			if err := s.issue(h); err != nil {
				logger.Error("no new certificate", "process", h.folder, "error", err)
			}
		}
	}
}

// close stops watching certificates and grants.
func (s *secured) close() {
	if s == nil {
		return
	}
	for _, g := range s.guards {
		g.Close()
	}
	for _, source := range s.sources {
		source.Close()
	}
}

// gateway adds TLS to the configuration of the gateway.
func (s *secured) gateway(cfg *gateway.Config, logger *slog.Logger) error {
	if s == nil {
		return nil
	}
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return fmt.Errorf("--listen %q: %w", cfg.Listen, err)
	}
	source, err := s.open(holder{folder: gatewayName, identity: identity.Identity{Role: identity.Gateway},
		hosts: []string{"localhost", "127.0.0.1", "::1", host}}, logger)
	if err != nil {
		return err
	}
	cfg.Audit = s.seams.audit
	s.guards = append(s.guards, cfg.Secure(source))
	return nil
}

// shard adds TLS to the configuration of a shard.
func (s *secured) shard(cfg *shard.Config, logger *slog.Logger) error {
	if s == nil {
		return nil
	}
	source, err := s.open(holder{folder: cfg.Name, identity: identity.Identity{Role: identity.Shard, Name: cfg.Name},
		hosts: []string{"localhost", "127.0.0.1", "::1"}}, logger)
	if err != nil {
		return err
	}
	cfg.Audit = s.seams.audit
	s.guards = append(s.guards, cfg.Secure(source))
	return nil
}

// CallerFiles returns the files for a caller of the store. The names are empty if the store does not use TLS.
func (d *Dev) CallerFiles() client.TLSFiles {
	if d.secured == nil {
		return client.TLSFiles{}
	}
	dir := filepath.Join(d.secured.dir, callerName)
	return client.TLSFiles{
		CA: filepath.Join(dir, certs.BundleFile), Cert: filepath.Join(dir, certs.CertificateFile),
		Key: filepath.Join(dir, certs.KeyFile),
	}
}
