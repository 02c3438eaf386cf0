// Package problems holds the problems of a shard that an operator should see.
package problems

import (
	"log/slog"
	"maps"
	"sync"
)

// These are the beginnings of the subjects of problems of one group. The name of the group follows. Such a problem is
// also removed when its cause has ended in a way that nobody notes.
const (
	Moving     = "moving group "
	Resuming   = "resuming group "
	Repairing  = "repairing group "
	Installing = "installing group "
	Compacting = "compacting group "
)

// List holds problems until they are removed. Safe for concurrent use.
type List struct {
	logger *slog.Logger

	mu  sync.Mutex
	now map[string]error // by their subject
}

// New makes an empty List.
func New(logger *slog.Logger) *List { return &List{logger: logger, now: map[string]error{}} }

// Note remembers a problem, and logs it if it is new or its error has changed; a nil error removes it.
func (p *List) Note(what string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.now, what)
		return
	}
	if old := p.now[what]; old == nil || old.Error() != err.Error() {
		p.logger.Error(what, "error", err)
	}
	p.now[what] = err
}

// Forget removes the problems for which the function over returns true.
func (p *List) Forget(over func(what string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.now, func(what string, _ error) bool { return over(what) })
}

// Of returns the problem with the given subject, or nil if there is none.
func (p *List) Of(what string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now[what]
}

// Words returns the problems as text, in no particular order.
func (p *List) Words() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	words := make([]string, 0, len(p.now))
	for what, err := range p.now {
		words = append(words, what+": "+err.Error())
	}
	return words
}
