package archiver

import (
	"slices"
	"sync"

	"github.com/google/uuid"
)

// copies tracks the copies of groups: those that are wanted, those in progress, and those that are complete. Safe for
// concurrent use.
type copies struct {
	signal chan struct{} // holds one element if wanted may have changed

	mu     sync.Mutex
	wanted []wanted    // in the order of the requests; includes those in progress. Guarded by mu
	done   []*group    // groups whose first copy is complete and whose catalogue exists. Guarded by mu
	again  []copyAgain // further copies that have ended. Guarded by mu
	err    error       // the error that must end the archiver, or nil. Guarded by mu
}

// wanted is a copy that was requested.
type wanted struct {
	id    uuid.UUID
	again *position // where the archive of the group ends; nil for a first copy
	begun bool      // the copy is in progress
}

// want requests a copy of a group, unless one was requested before.
func (c *copies) want(w wanted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.ContainsFunc(c.wanted, func(other wanted) bool { return other.id == w.id }) ||
		slices.ContainsFunc(c.done, func(g *group) bool { return g.id == w.id }) {
		return
	}
	c.wanted = append(c.wanted, w)
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

func (c *copies) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.wanted)
}

// begin returns the first copy that was not begun yet.
func (c *copies) begin() (wanted, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.wanted {
		if w := &c.wanted[i]; !w.begun {
			w.begun = true
			return *w, true
		}
	}
	return wanted{}, false
}

// end records the outcome of a copy in progress. Of the arguments g and again, one is the result. Both are nil if a
// first copy has failed, or if the archiver must end. After a failure, a later call of want may request the copy again.
func (c *copies) end(id uuid.UUID, g *group, again *copyAgain, fatal error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = slices.DeleteFunc(c.wanted, func(w wanted) bool { return w.id == id })
	if c.err == nil {
		c.err = fatal
	}
	if g != nil {
		c.done = append(c.done, g)
	}
	if again != nil {
		c.again = append(c.again, *again)
	}
}
