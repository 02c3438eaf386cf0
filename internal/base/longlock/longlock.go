// Package longlock has a mutex for what takes long: it may be held over input and output.
//
// Who waits for a sync.Mutex is not durably blocked for testing/synctest, as a mutex is thought to be held for a moment
// alone. Where the holder sleeps in virtual time, a slow disk of a test for instance, time would stand still for ever.
// Who waits for a Mutex of this package waits on a channel, and is durably blocked. ADR 48 has what that costs.
package longlock

import "sync/atomic"

// Mutex excludes as sync.Mutex does; its zero value is unlocked. It is handed from its holder to the one that has
// waited longest, so that nobody starves behind a holder that locks it again and again. It must not be copied after its
// first use. A Mutex that a bubble of testing/synctest waits for belongs to that bubble.
type Mutex struct {
	wanted atomic.Int32 // its holder and those who wait
	queue  atomic.Pointer[queue]
}

// queue is where those wait who found the lock held.
type queue struct {
	turn chan struct{} // has one element while the lock is on its way from one holder to the next
}

// Lock locks m, and waits until whoever holds it has unlocked it.
func (m *Mutex) Lock() {
	if m.wanted.Add(1) > 1 {
		<-m.waiting().turn
	}
}

// TryLock locks m unless it is held, and tells whether it did.
func (m *Mutex) TryLock() bool { return m.wanted.CompareAndSwap(0, 1) }

// Unlock unlocks m. It panics where m is not locked.
func (m *Mutex) Unlock() {
	switch left := m.wanted.Add(-1); {
	case left > 0:
		m.waiting().turn <- struct{}{} // never waits: only who holds the lock sends
	case left < 0:
		panic("longlock: Unlock of a Mutex that is not locked")
	}
}

// waiting is the queue, which is made when somebody waits for the first time.
func (m *Mutex) waiting() *queue {
	if q := m.queue.Load(); q != nil {
		return q
	}
	m.queue.CompareAndSwap(nil, &queue{turn: make(chan struct{}, 1)})
	return m.queue.Load()
}
