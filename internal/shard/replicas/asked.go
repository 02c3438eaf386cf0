package replicas

import "sync"

// Asked is a set of replicas for which one kind of work was requested. The code that does the work takes them from
// the set. Adding a replica never blocks, so a node may add its replica even while the node is locked. It is safe for
// concurrent use.
type Asked[T any] struct {
	Woken chan struct{} // receives after a replica was added

	mu  sync.Mutex
	all map[*Replica]T
}

func newAsked[T any]() *Asked[T] {
	return &Asked[T]{Woken: make(chan struct{}, 1), all: map[*Replica]T{}}
}

func (a *Asked[T]) add(r *Replica, how T) {
	a.mu.Lock()
	a.all[r] = how
	a.mu.Unlock()
	wake(a.Woken)
}

// Take returns the replicas that have been added since the last Take.
func (a *Asked[T]) Take() map[*Replica]T {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = map[*Replica]T{}
	return all
}

// AskLook asks the Steerer to examine the group if this replica leads.
func (r *Replica) AskLook() { r.set.Looks.add(r, struct{}{}) }

// AskFiles requests that the replica be installed from another member's files, because it cannot get the entries that
// it needs. That member's Raft id is passed as from.
func (r *Replica) AskFiles(from uint64) { r.set.Files.add(r, from) }

// NoteSealed records that the replica's log has filled a segment.
func (r *Replica) NoteSealed() { r.set.Sealed.add(r, struct{}{}) }

// Wake makes the watcher compare the replicas with etcd again. It never blocks.
func (s *Set) Wake() { wake(s.Woken) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
