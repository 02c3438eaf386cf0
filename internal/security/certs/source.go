// Package certs gives a process of a store its certificates from a folder, and checks those of its peers. The files may
// change under a running process: each handshake takes the newest set that is good, and a connection whose peer is no
// longer trusted is closed. See docs/adr/0038-certificates-change-under-a-running-process.md.
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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sheaf.dev/sheaf/internal/security/identity"
)

// lookEvery is how often files and open connections are looked at, where Config does not say it. The kubelet brings a
// changed Secret within about a minute.
const lookEvery = 10 * time.Second

// Config of a Source.
type Config struct {
	Dir    string           // where the files are; of InMemory empty
	Every  time.Duration    // between two looks at the files; 0: 10 s
	Now    func() time.Time // nil: the system's clock
	Logger *slog.Logger     // nil: nothing is said
}

// Source is the certificates of a process. Safe for concurrent use. Close must follow.
type Source struct {
	cfg     Config
	given   atomic.Pointer[files] // of InMemory, else nil
	current atomic.Pointer[material]
	stop    context.CancelFunc
	done    chan struct{}
	counts  counts

	mu     sync.Mutex
	conns  map[*conn]struct{}
	read   time.Time // when the files were found to be good
	failed error     // why the files are not used as they are now; nil: they are
}

// Status of a Source.
type Status struct {
	Identity identity.Identity
	Mode     Mode
	NotAfter time.Time // end of the certificate that ends first
	Bundle   string    // BundleHash of the authorities that vouch for the store's processes
	Clients  string    // BundleHash of those that vouch for callers; where they are the same ones, the same
	Plain    int       // connections that are plaintext now
	Read     time.Time // when the files in use were last found in the folder
	Failed   error     // why what is in the folder now is not used; nil: it is
}

// Open reads a folder, which must be good. It is looked at again until Close.
func Open(cfg Config) (*Source, error) { return start(cfg, nil) }

// InMemory is a Source without a folder: of these files, by their names in a folder, which must be good, until Replace
// gives it others.
func InMemory(cfg Config, content map[string][]byte) (*Source, error) {
	given := files(maps.Clone(content))
	return start(cfg, &given)
}

// Replace gives a Source of InMemory other files. Where they are not good, those before stay in use.
func (s *Source) Replace(content map[string][]byte) error {
	given := files(maps.Clone(content))
	s.given.Store(&given)
	s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// files as they are now.
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

// Close ends the looks at the folder. Connections stay.
func (s *Source) Close() {
	s.stop()
	<-s.done
}

// Identity of this process: it never changes.
func (s *Source) Identity() identity.Identity { return s.current.Load().identity }

// Dir is the folder; empty: they are in memory.
func (s *Source) Dir() string { return s.cfg.Dir }

// HasClientCertificate tells whether another certificate is shown to servers than to callers.
func (s *Source) HasClientCertificate() bool {
	m := s.current.Load()
	return m.client != m.server
}

// Status tells what is in use.
func (s *Source) Status() Status {
	m := s.current.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Status{Identity: m.identity, Mode: m.mode, NotAfter: m.notAfter, Bundle: m.own.hash, Clients: m.callers.hash,
		Read: s.read, Failed: s.failed}
	for c := range s.conns {
		if c.plain.Load() {
			out.Plain++
		}
	}
	return out
}

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

// look takes the files where they are others than before and good, and closes connections to peers that are no longer
// trusted.
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

// closeUntrusted ends connections whose peer's chain is not good any more: it has ended, or its authority is dropped;
// and those without TLS, where that is required now.
func (s *Source) closeUntrusted(now time.Time) {
	m := s.current.Load()
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		name, err := c.trouble(m, now)
		if err == nil {
			continue
		}
		s.counts.closed.Inc()
		s.cfg.Logger.Warn("a connection is closed: its peer is no longer trusted", "peer", name, "address", c.RemoteAddr().
			String(), "error", err)
		_ = c.Close() // whoever reads from it sees that
	}
}

// errPlaintext is why a connection of before is closed.
var errPlaintext = errors.New("it is plaintext, and TLS is required now")

// trouble is why a connection must not go on; name is its peer.
func (c *conn) trouble(m *material, now time.Time) (name string, err error) {
	if c.plain.Load() {
		if m.mode == Required {
			return "", errPlaintext
		}
		return "", nil
	}
	p := c.peer.Load()
	if p == nil {
		return "", nil // no handshake yet, or the peer has shown nothing
	}
	_, err = m.verify(p.chain, now, p.usage)
	return p.name(), err
}

// conn is a connection below TLS.
type conn struct {
	net.Conn
	source *Source
	peer   atomic.Pointer[shown]
	plain  atomic.Bool // there is no TLS above it
	first  []byte      // what was read to tell TLS from plaintext, and is read again; of one reader
}

// Read implements net.Conn.
func (c *conn) Read(into []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(into, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(into)
}

// isTLS tells by the first byte that comes whether the peer begins a handshake.
func (c *conn) isTLS() (bool, error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(c.Conn, first); err != nil {
		return false, err
	}
	c.first = first
	const handshake = 22 // RFC 8446, 5.1: the type of a record that holds a handshake
	return first[0] == handshake, nil
}

// shown is what the other end of a connection has shown, and what for.
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

// Close implements net.Conn.
func (c *conn) Close() error {
	c.source.mu.Lock()
	delete(c.source.conns, c)
	c.source.mu.Unlock()
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn: gRPC sets options of the socket.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if below, ok := c.Conn.(syscall.Conn); ok {
		return below.SyscallConn()
	}
	return nil, fmt.Errorf("%T has no socket", c.Conn)
}
