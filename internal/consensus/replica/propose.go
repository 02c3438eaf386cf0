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
	// Condition makes a write depend on the record's newest version.
	Condition = writes.Condition
	// Pending is a write in progress.
	Pending = writes.Pending
	// Result is the result of a committed write.
	Result = writes.Result
	// ConditionError is the error of a write that was refused because of its condition.
	ConditionError = writes.ConditionError
	// SyncTimes says when the sync that made a write durable on this replica started and ended.
	SyncTimes = writes.SyncTimes
)

func notServing(err error, why string) error { return fmt.Errorf("%w: %s", err, why) }

// Propose passes a write to the node. It evaluates the condition against all writes that were proposed earlier, in
// order.
func (r *Replica) Propose(w Write) *Pending {
	if err := writes.Check(&w); err != nil {
		return writes.Failed(err)
	}
	whole := w.RequestID == [16]byte{} || r.history.Read(r.putBefore)
	p := r.accept(&w, writes.Prepare(&w, r.heads), whole)
	if p.IsQueued() {
		r.seat.Schedule()
	}
	return p
}

// accept admits, declines or refuses a write. The order of calls to accept is the order of the group's writes. The
// argument whole says that no applied write with the same request id can be unknown (rule 4).
func (r *Replica) accept(w *Write, d writes.Draft, whole bool) *Pending {
	c := r.state.lock()
	defer c.unlock()
	if err := c.mayWrite(); err != nil {
		return writes.Failed(err)
	}
	if !whole && c.barred() {
		return writes.Failed(notServing(ErrNoLeader, "the log is damaged, and may hide a write with this request id"))
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

// mayForm returns an error if a new group must not accept writes yet. It returns nil if the group was ever written to.
func (c *core) mayForm() error {
	if c.forming != nil && c.log.LastCommitTime() == 0 && c.forming(c.members.conf) {
		voters := len(c.members.conf.GetVoters())
		return fmt.Errorf("%w: the group is being formed, with %d voters so far", ErrNoLeader, voters)
	}
	c.formed = true
	return nil
}

// decidesAlone reports whether the newest version that this replica has committed is certainly the group's newest,
// because no other member can lead (rules.Decline).
func (c *core) decidesAlone() bool { return c.members.sole || !c.rules.Keeps(rules.Decline) }

// declined answers a write that was declined because of the committed version at the index current. It first waits
// until a majority has confirmed that this replica still leads, because otherwise another leader might be active
// already, and that version might not be the newest.
func (c *core) declined(p *Pending, current uint64) {
	if c.decidesAlone() {
		c.writes.Answer(p, current)
		return
	}
	c.reads.add(&reader{declined: p, current: current})
	c.seat.Schedule()
}

// heads adapts a group's log to the interface through which package writes reads it.
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
