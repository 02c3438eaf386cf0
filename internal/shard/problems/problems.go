// Package problems holds the problems of a shard that an operator should see.
package problems

import (
	"log/slog"
	"maps"
	"sync"
)

// The subject of a problem with a single group consists of one of these prefixes and the group's name. The Repairer
// also removes such problems, because their cause may end without a call to Note.
const (
	Moving     = "moving group "
	Resuming   = "resuming group "
	Repairing  = "repairing group "
	Installing = "installing group "
	Compacting = "compacting group "
	Restoring  = "restoring group "
)

// List holds problems until they are removed. It is safe for concurrent use.
type List struct {
	logger *slog.Logger

	mu  sync.Mutex
	now map[string]error // the keys are subjects
}

// New creates an empty List.
func New(logger *slog.Logger) *List { return &List{logger: logger, now: map[string]error{}} }

// Note records a problem, and logs it if it is new or its error has changed. A nil error removes the problem.
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

// Forget removes each problem for whose subject over returns true.
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

// Words returns a message for each problem, in no particular order.
func (p *List) Words() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	words := make([]string, 0, len(p.now))
	for what, err := range p.now {
		words = append(words, what+": "+err.Error())
	}
	return words
}
