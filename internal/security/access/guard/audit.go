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

// Event is one line of the audit log. It never contains data, versions or tokens.
type Event struct {
	Time   string `json:"time"`   // time in RFC 3339 format, in UTC, with milliseconds
	Server string `json:"server"` // name of the server that wrote the line
	Kind   string `json:"kind"`   // one of refusal, admin, first-use, write and view
	Caller string `json:"caller"`
	Via    string `json:"via,omitempty"` // name of the gateway that forwarded the call
	From   string `json:"from,omitempty"`
	Method string `json:"method"`
	Verb   string `json:"verb,omitempty"`
	Group  string `json:"group,omitempty"`
	Shard  string `json:"shard,omitempty"` // name of the shard that the call is about, if Kind is admin
	// IDs are record ids in decimal. In a line about a refusal, this is the id of the first record that was refused. In
	// a line about writes, these are the first 100 ids.
	IDs     []string `json:"ids,omitempty"`
	Records int      `json:"records,omitempty"` // number of writes, if Kind is write; Code is then their common outcome
	Action  string   `json:"action,omitempty"`  // open, renew or close, if Kind is view
	View    string   `json:"view,omitempty"`    // id of the view, if Kind is view
	Groups  []string `json:"groups,omitempty"`  // names of the view's first 100 groups, if Kind is view
	Grants  []string `json:"grants,omitempty"`  // names of the grants that were used for the first time
	Table   int64    `json:"table"`             // version of the table of grants, or 0 if the store has no table
	Code    string   `json:"code,omitempty"`
	Reason  string   `json:"reason,omitempty"`
}

// AuditConfig says where an audit log is written, and what it contains.
type AuditConfig struct {
	Path   string // path of a FIFO or of a file, to which lines are appended; "-": standard output
	Server string // name of the server in the lines
	Writes bool   // whether writes are logged, too
}

const (
	// auditQueue limits the number of lines that wait to be written. Any further lines are dropped and counted.
	auditQueue = 4096
	idsShown   = 100 // maximum number of ids in a line about writes, and of groups in a line about a view
	groupShown = 253 // maximum number of bytes of a group's name in a line; valid names are not longer
)

// auditPatience limits how long Close waits until all pending lines are written. It is a variable, because tests need
// a longer time.
var auditPatience = 2 * time.Second

// Audit writes events as lines of JSON. Reporting an event never blocks. If the log's reader is too slow, lines are
// dropped and counted. A nil Audit accepts events and writes nothing. It is safe for concurrent use.
type Audit struct {
	cfg     AuditConfig
	out     io.WriteCloser
	queue   chan []byte
	done    chan struct{}
	closing sync.Once
	written prometheus.Counter
	lost    prometheus.Counter

	mu     sync.RWMutex // prevents Close from closing queue while note sends to it
	closed bool
}

// OpenAudit opens an audit log. The caller must call Close.
func OpenAudit(cfg AuditConfig) (*Audit, error) {
	out := io.WriteCloser(keepOpen{os.Stdout})
	if cfg.Path != "-" {
		flags := os.O_WRONLY | os.O_APPEND | os.O_CREATE
		if at, err := os.Stat(cfg.Path); err == nil && at.Mode()&os.ModeNamedPipe != 0 {
			// If a FIFO were opened only for writing, this call would block until somebody reads the FIFO.
			flags = os.O_RDWR
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

// keepOpen wraps standard output in a writer whose Close does nothing.
type keepOpen struct{ io.Writer }

// Close implements io.Closer.
func (keepOpen) Close() error { return nil }

// Collectors returns the metrics of the log, to be registered.
func (a *Audit) Collectors() []prometheus.Collector { return []prometheus.Collector{a.written, a.lost} }

func (a *Audit) writes() bool { return a != nil && a.cfg.Writes }

// note accepts an event and never blocks. It fills in Time and Server.
func (a *Audit) note(e Event) {
	if a == nil {
		return
	}
	e.Time, e.Server = time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00"), a.cfg.Server
	if len(e.Group) > groupShown {
		e.Group = e.Group[:groupShown]
	}
	if len(e.Shard) > groupShown {
		e.Shard = e.Shard[:groupShown]
	}
	line, err := json.Marshal(e)
	if err != nil { // this cannot happen, because every event can be encoded
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

// Close writes the pending lines. If the reader does not accept them within 2 s, Close gives up. Calling Close again
// has no effect.
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
