// Package longlock provides a mutex for long operations. A goroutine may hold the mutex during input and output.
//
// A goroutine that waits for a sync.Mutex is not durably blocked for testing/synctest, which assumes that a mutex is
// held only briefly. If the holder slept in virtual time, for example because of a slow disk in a test, time would stop
// forever. A goroutine that waits for a Mutex of this package waits on a channel, and is durably blocked. ADR 48
// compares the cost of this mutex with that of sync.Mutex.
package longlock

import "sync/atomic"

// Mutex is a mutual exclusion lock like sync.Mutex. Its zero value is unlocked. Unlock hands the lock to the goroutine
// that has waited longest, so that a goroutine that locks it repeatedly cannot starve others. A Mutex must not be
// copied after its first use. A Mutex for which a bubble of testing/synctest has waited belongs to that bubble.
type Mutex struct {
	wanted atomic.Int32 // number of holders and waiters
	queue  atomic.Pointer[queue]
}

// queue is the queue of goroutines that wait for a held lock. It is created when the first goroutine has to wait.
type queue struct {
	turn chan struct{} // holds one element while the lock passes from one holder to the next
}

// Lock locks m. It waits until the present holder has unlocked m.
func (m *Mutex) Lock() {
	if m.wanted.Add(1) > 1 {
		<-m.waiting().turn
	}
}

// TryLock locks m unless m is held, and reports whether it has locked m.
func (m *Mutex) TryLock() bool { return m.wanted.CompareAndSwap(0, 1) }

// Unlock unlocks m. It panics if m is not locked.
func (m *Mutex) Unlock() {
	switch left := m.wanted.Add(-1); {
	case left > 0:
		m.waiting().turn <- struct{}{} // does not block, because only the holder of the lock sends
	case left < 0:
		panic("longlock: Unlock of a Mutex that is not locked")
	}
}

// waiting returns the queue, and creates it for the first waiter.
func (m *Mutex) waiting() *queue {
	if q := m.queue.Load(); q != nil {
		return q
	}
	m.queue.CompareAndSwap(nil, &queue{turn: make(chan struct{}, 1)})
	return m.queue.Load()
}
