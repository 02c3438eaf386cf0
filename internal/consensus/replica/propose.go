package replica

import (
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/consensus/replica/writes"
	"sheaf.dev/sheaf/internal/storage/group"
)

type (
	// Write is a put or a delete. Package writes explains this type and those below.
	Write = writes.Write
	// Condition makes a write depend on the newest version.
	Condition = writes.Condition
	// Pending is a write in progress.
	Pending = writes.Pending
	// Result is the result of a committed write.
	Result = writes.Result
	// ConditionError is the error of a write that was refused because of its condition.
	ConditionError = writes.ConditionError
	// SyncTimes holds the times of the sync that made a write durable on this replica.
	SyncTimes = writes.SyncTimes
)

func notServing(err error, why string) error { return fmt.Errorf("%w: %s", err, why) }

// Propose passes a write to the node. It evaluates the condition against all writes that were proposed earlier, in
// order.
func (r *Replica) Propose(w Write) *Pending {
	if err := writes.Check(&w); err != nil {
		return writes.Failed(err)
	}
	if w.RequestID != ([16]byte{}) {
		r.history.Read(r.putBefore)
	}
	p := r.accept(&w, writes.Prepare(&w, r.heads))
	if p.IsQueued() {
		r.seat.Schedule()
	}
	return p
}

// accept admits, declines or refuses a write. The order of its calls is the order of all writes of the group.
func (r *Replica) accept(w *Write, d writes.Draft) *Pending {
	c := r.state.lock()
	defer c.unlock()
	if err := c.mayWrite(); err != nil {
		return writes.Failed(err)
	}
	p := c.writes.Accept(w, d, writes.Lead{Sole: c.decidesAlone(), NoSpace: c.full.err, Hangs: c.hangs})
	if p.IsQueued() {
		c.quiet.wake()
	}
	return p
}

func (r *Replica) putBefore(older writes.Older) {
	c := r.state.lock()
	defer c.unlock()
	c.writes.PutBefore(older)
}

func (c *core) mayWrite() error {
	if err := c.isOpen(); err != nil {
		return err
	}
	switch {
	case !c.node.serving:
		return ErrNoLeader
	case c.ending || c.idle.ended.Load():
		return fmt.Errorf("%w: %w", ErrNoLeader, ErrEnded)
	case !c.formed:
		return c.mayForm()
	}
	return nil
}

// mayForm returns an error if a new group must not accept writes yet. If the group has ever had a write, mayForm
// returns nil.
func (c *core) mayForm() error {
	if c.forming != nil && c.log.LastCommitTime() == 0 && c.forming(c.members.conf) {
		voters := len(c.members.conf.GetVoters())
		return fmt.Errorf("%w: the group is being formed, with %d voters so far", ErrNoLeader, voters)
	}
	c.formed = true
	return nil
}

// decidesAlone reports whether the newest version that this replica has committed is the newest of the group, because
// no other member can lead (rules.Decline).
func (c *core) decidesAlone() bool { return c.members.sole || !c.rules.Keeps(rules.Decline) }

// declined answers a write that was declined because of a committed version with the index current. It first waits
// until a majority has confirmed that this replica still leads. Without that confirmation another leader may be
// active already, and that version may not be the newest one.
func (c *core) declined(p *Pending, current uint64) {
	if c.decidesAlone() {
		c.writes.Answer(p, current)
		return
	}
	c.reads.add(&reader{declined: p, current: current})
	c.seat.Schedule()
}

// heads is the log in the form in which package writes reads it.
type heads struct{ store }

// Head implements writes.Log.
func (h heads) Head(id int64) (uint64, error) {
	index, deleted, err := h.store.Head(id)
	switch {
	case errors.Is(err, group.ErrNotFound) || err == nil && deleted:
		return 0, nil
	case err != nil:
		return 0, err
	}
	return index, nil
}
