// Package certs reads the certificates of a process from a folder, and verifies the certificates of the process's
// peers. The files may change while the process runs. Each handshake uses the newest valid set of files. When a peer
// is no longer trusted, its connections are closed. See docs/adr/0038-certificates-change-under-a-running-process.md.
package certs

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/security/identity"
)

// lookEvery is the default interval at which files and open connections are checked. It is short compared with the
// minute that the kubelet may take to deliver a changed Secret.
const lookEvery = 10 * time.Second

// Config configures a Source.
type Config struct {
	Dir    string           // folder that contains the files; empty for InMemory
	Every  time.Duration    // interval between two checks of the files; 0 means 10 s
	Now    func() time.Time // returns the time; nil means time.Now
	Logger *slog.Logger     // if it is nil, nothing is logged
}

// Source holds the certificates of a process. It is safe for concurrent use. Its owner must call Close.
type Source struct {
	cfg     Config
	given   atomic.Pointer[files] // set only if the Source was created by InMemory
	current atomic.Pointer[material]
	stop    context.CancelFunc
	done    chan struct{}
	counts  counts

	mu     sync.Mutex
	conns  map[*conn]struct{}
	read   time.Time // when the files were last read and found valid
	failed error     // why the newest files are not used; nil if they are
}

// Open reads a folder of certificates, and returns an error unless all files are valid. Until Close is called, the
// Source checks the folder for changes.
func Open(cfg Config) (*Source, error) { return start(cfg, nil) }

// InMemory creates a Source whose files are in memory and not in a folder. The argument content maps file names to
// contents. InMemory returns an error unless the files are valid. They are used until Replace is called.
func InMemory(cfg Config, content map[string][]byte) (*Source, error) {
	given := files(maps.Clone(content))
	return start(cfg, &given)
}

// Replace replaces the files of a Source that InMemory has created. If the new files are not valid, it returns an
// error, and the previous files stay in use.
func (s *Source) Replace(content map[string][]byte) error {
	given := files(maps.Clone(content))
	s.given.Store(&given)
	s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// files returns the newest version of the files, which may be invalid.
func (s *Source) files() (files, error) {
	if given := s.given.Load(); given != nil {
		return *given, nil
	}
	return readFiles(s.cfg.Dir)
}

func start(cfg Config, given *files) (*Source, error) {
	if cfg.Every == 0 {
		cfg.Every = lookEvery
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Source{cfg: cfg, conns: map[*conn]struct{}{}, done: make(chan struct{}), counts: newCounts()}
	s.given.Store(given)
	found, err := s.files()
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	now := cfg.Now()
	m, err := found.material(now)
	if err != nil {
		return nil, fmt.Errorf("certificates in %s, at %s: %w", cmp.Or(cfg.Dir, "memory"), now.UTC().Format(time.RFC3339),
			err)
	}
	s.current.Store(m)
	s.read = now
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go s.follow(ctx)
	return s, nil
}

// Close stops the checks of the folder and of connections. It does not close connections.
func (s *Source) Close() {
	s.stop()
	<-s.done
}

// Identity returns the identity of this process, which cannot change.
func (s *Source) Identity() identity.Identity { return s.current.Load().identity }

// Dir returns the path of the folder. It is empty if the files are in memory.
func (s *Source) Dir() string { return s.cfg.Dir }

// HasClientCertificate reports whether the process presents a separate certificate to servers.
func (s *Source) HasClientCertificate() bool {
	m := s.current.Load()
	return m.client != m.server
}

// GrantsRequired reports whether callers must wait if there is no table of grants.
func (s *Source) GrantsRequired() bool { return s.current.Load().grantsRequired }

func (s *Source) follow(ctx context.Context) {
	defer close(s.done)
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.look()
		case <-ctx.Done():
			return
		}
	}
}

// look reads the files. If they have changed and are valid, it starts to use them. It then closes connections to
// peers that are no longer trusted.
func (s *Source) look() {
	now := s.cfg.Now()
	failed := s.take(now)
	s.mu.Lock()
	if failed == nil {
		s.read = now
	} else if s.failed == nil || s.failed.Error() != failed.Error() {
		s.cfg.Logger.Error("the certificates are not taken, those read before stay in use", "dir", s.cfg.Dir, "error", failed,
			"valid_until", s.current.Load().notAfter)
	}
	s.failed = failed
	s.mu.Unlock()
	s.closeUntrusted(now)
}

func (s *Source) take(now time.Time) error {
	found, err := s.files()
	if err != nil {
		s.counts.reloadErrors.Inc()
		return err
	}
	before := s.current.Load()
	if found.sum() == before.content {
		return nil
	}
	m, err := found.material(now)
	if err == nil && m.identity != before.identity {
		err = fmt.Errorf("%s names %s, and this process is %s", CertificateFile, m.identity, before.identity)
	}
	if err != nil {
		s.counts.reloadErrors.Inc()
		return err
	}
	s.current.Store(m)
	s.cfg.Logger.Info("new certificates are in use", "dir", s.cfg.Dir, "valid_until", m.notAfter, "authorities",
		m.own.hash, "authorities_of_callers", m.callers.hash,
		"mode", string(m.mode))
	return nil
}

// closeUntrusted closes each connection whose peer's chain is no longer valid, because the chain has expired or its
// authority is no longer trusted. If TLS is required, it also closes connections without TLS.
func (s *Source) closeUntrusted(now time.Time) {
	m := s.current.Load()
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range all {
		name, err := c.trouble(m, now)
		if err == nil {
			continue
		}
		s.counts.closed.Inc()
		s.cfg.Logger.Warn("a connection is closed: its peer is no longer trusted", "peer", name, "address", c.RemoteAddr().
			String(), "error", err)
		_ = c.Close() // the goroutine that reads from the connection gets the error
	}
}

// errPlaintext is the reason why plaintext connections are closed when TLS becomes required.
var errPlaintext = errors.New("it is plaintext, and TLS is required now")

// trouble returns the reason why a connection must be closed, or nil if it may stay open. It also returns the name of
// the peer.
func (c *conn) trouble(m *material, now time.Time) (name string, err error) {
	if c.plain.Load() {
		if m.mode == Required {
			return "", errPlaintext
		}
		return "", nil
	}
	p := c.peer.Load()
	if p == nil {
		return "", nil // there was no handshake yet, or the peer has presented no certificate
	}
	_, err = m.verify(p.chain, now, p.usage)
	return p.name(), err
}

// conn is a network connection that carries either TLS or plaintext.
type conn struct {
	net.Conn
	source *Source
	peer   atomic.Pointer[shown]
	plain  atomic.Bool // whether the connection carries plaintext
	// first contains the bytes that were read ahead to distinguish TLS from plaintext. Read returns them again. Only the
	// goroutine that reads the connection uses this field.
	first []byte
}

func (c *conn) Read(into []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(into, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(into)
}

// isTLS reads the first byte, which tells whether the peer begins a TLS handshake.
func (c *conn) isTLS() (bool, error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(c.Conn, first); err != nil {
		return false, err
	}
	c.first = first
	const handshake = 22 // the TLS record type of a handshake (RFC 8446, 5.1)
	return first[0] == handshake, nil
}

// shown holds the certificate chain that a peer has presented, and the usage for which the chain was verified.
type shown struct {
	chain []*x509.Certificate
	usage x509.ExtKeyUsage
}

func (p *shown) name() string {
	if len(p.chain[0].URIs) == 1 {
		return p.chain[0].URIs[0].String()
	}
	return p.chain[0].Subject.String()
}

func (s *Source) track(raw net.Conn) *conn {
	c := &conn{Conn: raw, source: s}
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	return c
}

func (c *conn) Close() error {
	c.source.mu.Lock()
	delete(c.source.conns, c)
	c.source.mu.Unlock()
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn, which gRPC needs to set socket options.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if below, ok := c.Conn.(syscall.Conn); ok {
		return below.SyscallConn()
	}
	return nil, fmt.Errorf("%T has no socket", c.Conn)
}

// counts holds the counters of a Source.
type counts struct {
	reloadErrors prometheus.Counter
	closed       prometheus.Counter
	handshakes   *prometheus.CounterVec
}

func newCounts() counts {
	return counts{
		reloadErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "sheaf_tls_reload_errors_total",
			Help: "Looks at the folder of certificates that found files that cannot be used; those read before stay in use."}),
		closed: prometheus.NewCounter(prometheus.CounterOpts{Name: "sheaf_tls_closed_connections_total",
			Help: "Connections that were closed because their peer was no longer trusted, or they were plaintext when TLS " +
				"became required."}),
		handshakes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sheaf_tls_refused_handshakes_total",
			Help: "Connections without a handshake, by reason: none, plaintext, authority, expired, usage, identity, peer, " +
				"other."}, []string{"reason"}),
	}
}

// Collectors returns the metrics of a Source, to be registered.
func (s *Source) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		s.counts.reloadErrors, s.counts.closed, s.counts.handshakes,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sheaf_tls_certificate_not_after_timestamp_seconds",
			Help: "When the certificate in use ends."}, func() float64 { return float64(s.Report().NotAfter.Unix()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sheaf_tls_read_timestamp_seconds",
			Help: "When the certificates in use were last found in their folder."}, func() float64 {
			return float64(s.Report().Read.Unix())
		}),
	}
}
