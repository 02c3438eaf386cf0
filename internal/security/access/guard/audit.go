package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Event is one line of the audit log. It never holds data, versions or tokens.
type Event struct {
	Time   string `json:"time"`   // RFC 3339, UTC, with milliseconds
	Server string `json:"server"` // that tells
	Kind   string `json:"kind"`   // refusal, admin, first-use or write
	Caller string `json:"caller"`
	Via    string `json:"via,omitempty"` // the gateway that called for the caller
	From   string `json:"from,omitempty"`
	Method string `json:"method"`
	Verb   string `json:"verb,omitempty"`
	Group  string `json:"group,omitempty"`
	// IDs of records, in decimal: of a refusal that of the first record, of writes those of the first 100.
	IDs     []string `json:"ids,omitempty"`
	Records int      `json:"records,omitempty"` // how many were written, or not, as Code says; with Kind write
	Grants  []string `json:"grants,omitempty"`  // that allow it, of a first use
	Table   int64    `json:"table"`             // version of the table; 0: the store has none
	Code    string   `json:"code,omitempty"`
	Reason  string   `json:"reason,omitempty"`
}

// AuditConfig says where an audit log goes.
type AuditConfig struct {
	Path   string // of a file, which is appended to, or of a FIFO; "-": standard output
	Server string // as events name it
	Writes bool   // also every write
}

const (
	// auditQueue bounds the lines that wait to be written. Others are lost, and counted.
	auditQueue = 4096
	idsShown   = 100 // of the writes of one line
	groupShown = 253 // bytes of a group's name in a line: a name that is too long is of no group
)

// auditPatience is how long Close waits for lines to be written. Tests make it longer.
var auditPatience = 2 * time.Second

// Audit writes events as lines of JSON. Nobody waits for it: where its reader is slow, lines are lost, and counted. A
// nil one takes events and writes nothing. Safe for concurrent use.
type Audit struct {
	cfg     AuditConfig
	out     io.WriteCloser
	queue   chan []byte
	done    chan struct{}
	closing sync.Once
	written prometheus.Counter
	lost    prometheus.Counter

	mu     sync.RWMutex // guards queue against being closed under Note
	closed bool
}

// OpenAudit opens an audit log. Close must follow.
func OpenAudit(cfg AuditConfig) (*Audit, error) {
	out := io.WriteCloser(keepOpen{os.Stdout})
	if cfg.Path != "-" {
		flags := os.O_WRONLY | os.O_APPEND | os.O_CREATE
		if at, err := os.Stat(cfg.Path); err == nil && at.Mode()&os.ModeNamedPipe != 0 {
			flags = os.O_RDWR // to open a FIFO for writing alone waits for a reader
		}
		file, err := os.OpenFile(cfg.Path, flags, 0o600)
		if err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		out = file
	}
	return newAudit(cfg, out), nil
}

func newAudit(cfg AuditConfig, out io.WriteCloser) *Audit {
	a := &Audit{
		cfg: cfg, out: out, queue: make(chan []byte, auditQueue), done: make(chan struct{}),
		written: prometheus.NewCounter(prometheus.CounterOpts{Name: "sheaf_audit_lines_total",
			Help: "Lines that were written to the audit log."}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{Name: "sheaf_audit_lost_lines_total",
			Help: "Lines that were not written to the audit log, as it does not take them or as fast as they come."}),
	}
	go a.write()
	return a
}

// keepOpen is a file that is not closed.
type keepOpen struct{ io.Writer }

// Close implements io.Closer.
func (keepOpen) Close() error { return nil }

// Collectors of the log, for a registry.
func (a *Audit) Collectors() []prometheus.Collector { return []prometheus.Collector{a.written, a.lost} }

func (a *Audit) writes() bool { return a != nil && a.cfg.Writes }

// note takes an event, and never waits. Time and Server are set.
func (a *Audit) note(e Event) {
	if a == nil {
		return
	}
	e.Time, e.Server = time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00"), a.cfg.Server
	if len(e.Group) > groupShown {
		e.Group = e.Group[:groupShown]
	}
	line, err := json.Marshal(e)
	if err != nil { // nothing in an event cannot be encoded
		a.lost.Inc()
		return
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.closed {
		a.lost.Inc()
		return
	}
	select {
	case a.queue <- append(line, '\n'):
	default:
		a.lost.Inc()
	}
}

func (a *Audit) write() {
	defer close(a.done)
	for line := range a.queue {
		if _, err := a.out.Write(line); err != nil {
			a.lost.Inc()
			continue
		}
		a.written.Inc()
	}
}

// Close writes what waits, as long as its reader takes it within 2 s. It may be called again.
func (a *Audit) Close() (err error) {
	if a == nil {
		return nil
	}
	a.closing.Do(func() {
		a.mu.Lock()
		a.closed = true
		close(a.queue)
		a.mu.Unlock()
		timer := time.NewTimer(auditPatience)
		defer timer.Stop()
		select {
		case <-a.done:
			err = a.out.Close()
		case <-timer.C:
			err = errors.Join(errors.New("the audit log is not taken by its reader: the last lines are lost"), a.out.Close())
		}
	})
	return err
}
