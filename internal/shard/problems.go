package shard

import (
	"log/slog"
	"maps"
	"sync"
)

// These are the beginnings of the subjects of problems of one group. The name of the group follows.
// repairer.forgetEnded removes the problems whose cause has ended.
const (
	movingGroup     = "moving group "
	resumingGroup   = "resuming group "
	repairingGroup  = "repairing group "
	installingGroup = "installing group "
	compactingGroup = "compacting group "
)

// problems holds the problems of the shard that an operator should see, until they are removed. Safe for concurrent
// use.
type problems struct {
	logger *slog.Logger

	mu  sync.Mutex
	now map[string]error // by their subject
}

// Note remembers a problem, and logs it if it is new or its error has changed; a nil error removes it.
func (p *problems) Note(what string, err error) {
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
func (p *problems) Forget(over func(what string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.now, func(what string, _ error) bool { return over(what) })
}

// of returns the problem with the given subject, or nil if there is none.
func (p *problems) of(what string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now[what]
}

// words returns the problems as text, in no particular order.
func (p *problems) words() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	words := make([]string, 0, len(p.now))
	for what, err := range p.now {
		words = append(words, what+": "+err.Error())
	}
	return words
}
