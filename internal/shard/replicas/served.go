package replicas

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/storage/group"
)

// Served is a replica with the node that serves it. It implements serve.Group.
type Served struct {
	Group  *Replica
	RaftID uint64
	Quota  *quota.Of

	log  *group.Log
	node *replica.Replica
}

// Serve records that a node serves the replica.
func (r *Replica) Serve(log *group.Log, node *replica.Replica, raftID uint64, of *quota.Of) *Served {
	sv := &Served{Group: r, RaftID: raftID, Quota: of, log: log, node: node}
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.state.RaftID = raftID
	r.served.Store(sv)
	return sv
}

// Served returns the replica's Served, or nil if no node serves it. It takes no lock.
func (r *Replica) Served() *Served { return r.served.Load() }

// TakeOut takes a replica out of service, and locks it against other changes until EndChange is called. It returns the
// Served, which the caller must close. TakeOut does nothing and returns nil if the replica is not served, or if the
// argument `only` is neither nil nor the current Served.
func (r *Replica) TakeOut(only *Served) *Served {
	r.changing.Lock()
	sv := r.Served()
	if sv == nil || only != nil && sv != only {
		r.changing.Unlock()
		return nil
	}
	r.served.Store(nil)
	return sv
}

// PutBack puts a Served back into service after TakeOut has returned it. It also releases the lock that TakeOut took.
func (r *Replica) PutBack(sv *Served) {
	r.served.Store(sv)
	r.changing.Unlock()
}

// EndChange releases the lock that TakeOut took.
func (r *Replica) EndChange() { r.changing.Unlock() }

// Close stops serving the replica. Calls in progress fail with STOPPING.
func (r *Replica) Close(ctx context.Context, hints bool) error {
	sv := r.TakeOut(nil)
	if sv == nil {
		return nil
	}
	defer r.EndChange()
	if err := sv.node.Stop(ctx); err != nil {
		// Writes in flight are abandoned, because an orderly close would wait for them.
		return errors.Join(err, sv.log.Close(false))
	}
	return sv.log.Close(hints)
}

// Everywhere returns the index up to which every member has all entries. The leader computes it from m.
func (sv *Served) Everywhere(m replica.Members) uint64 {
	index := m.AppliedIndex
	for _, p := range m.Progress {
		if p.ID != sv.RaftID {
			index = min(index, p.Match)
		}
	}
	return index
}

// Name implements serve.Group.
func (sv *Served) Name() string { return sv.Group.Name }

// UUID implements serve.Group.
func (sv *Served) UUID() uuid.UUID { return sv.Group.UUID }

// Log implements serve.Group.
func (sv *Served) Log() *group.Log { return sv.log }

// Replica implements serve.Group.
func (sv *Served) Replica() *replica.Replica { return sv.node }

// Leads returns the present term of the group's consensus, and whether this replica is the leader in it.
func (sv *Served) Leads() (term uint64, leads bool) {
	m := sv.node.Members()
	return m.Term, m.LeaderID == sv.RaftID
}

// Tenant implements serve.Group.
func (sv *Served) Tenant() *quota.Tenant {
	t := sv.Quota.Tenant()
	if t == nil || !sv.node.Readable() && !sv.node.Status().Leader {
		return nil // only the leader charges calls to quotas
	}
	return t
}

// ViewTenant implements serve.Group.
func (sv *Served) ViewTenant() *quota.Tenant { return sv.Quota.Tenant() }

// IsServed implements serve.Group.
func (sv *Served) IsServed() bool { return sv.Group.Served() == sv }

// barrierTime limits how long a read waits for responses from a majority. A leader behind a network partition does
// not notice the partition immediately, but the caller can ask other members in the meantime.
const barrierTime = 2 * time.Second

// Barrier implements serve.Group.
func (sv *Served) Barrier(ctx context.Context) error {
	if err := sv.barrier(ctx); err != nil || !sv.node.Ended() {
		return err
	}
	return sv.Elsewhere(errEnded)
}

// errEnded is the error for reads of a group that has ended. They are refused, because a new group with the same name
// may already contain records.
var errEnded = fmt.Errorf("%w: %w", replica.ErrNoLeader, replica.ErrEnded)

func (sv *Served) barrier(ctx context.Context) error {
	if sv.node.Readable() {
		return nil
	}
	if st := sv.node.Status(); st.LeaderID != 0 && st.LeaderID != sv.RaftID {
		return sv.Elsewhere(replica.ErrNoLeader)
	}
	short, cancel := context.WithTimeout(ctx, barrierTime)
	defer cancel()
	err := sv.node.ReadBarrier(short)
	if err != nil && ctx.Err() != nil {
		return err
	}
	return sv.Elsewhere(err)
}

// ReadHere implements serve.Group.
func (sv *Served) ReadHere(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, barrierTime)
	defer cancel()
	if err := sv.node.ReadBarrier(ctx); err != nil || !sv.node.Ended() {
		return err
	}
	return errEnded
}

// Writable implements serve.Group.
func (sv *Served) Writable() error {
	if !sv.Group.awaits.Load() {
		return nil
	}
	group, _ := sv.Group.set.GroupOf(sv.Group)
	return answer.AwaitsCopies(sv.Group.Name, len(group.Voters()), group.WritesFrom)
}

// MayWrite implements serve.Group.
func (sv *Served) MayWrite() error {
	if err := sv.Writable(); err != nil {
		return err
	}
	if sv.node.Readable() || sv.node.Status().Leader {
		return nil
	}
	return sv.Elsewhere(replica.ErrNoLeader)
}

// Elsewhere implements serve.Group.
func (sv *Served) Elsewhere(err error) error {
	if !errors.Is(err, replica.ErrNoLeader) || errors.Is(err, replica.ErrOutcomeUnknown) {
		return err
	}
	st := sv.node.Status()
	shard, known := sv.Group.Route(st.LeaderID)
	if st.LeaderID == sv.RaftID || !known {
		return fmt.Errorf("group %s: %w", sv.Group.Name, replica.ErrNoLeader)
	}
	address, _ := sv.Group.set.Address(shard)
	return answer.NotLeader(sv.Group.Name, address, sv.Group.set.Routes().Epoch)
}
