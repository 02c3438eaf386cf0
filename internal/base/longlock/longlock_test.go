package longlock

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneHolderAtATime(t *testing.T) {
	var m Mutex
	var wait sync.WaitGroup
	count, inside := 0, atomic.Int32{}
	for range 8 {
		wait.Go(func() {
			for range 2000 {
				m.Lock()
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				count++
				if count%16 == 0 {
					runtime.Gosched() // let other goroutines start waiting
				}
				inside.Add(-1)
				m.Unlock()
			}
		})
	}
	wait.Wait()
	if count != 8*2000 {
		t.Fatalf("%d of %d turns counted", count, 8*2000)
	}
}

func TestTryLockWaitsForNobody(t *testing.T) {
	var m Mutex
	if !m.TryLock() {
		t.Fatal("the zero value is locked")
	}
	if m.TryLock() {
		t.Fatal("a lock that is held was had by TryLock")
	}
	m.Unlock()
	m.Lock()
	if m.TryLock() {
		t.Fatal("a lock that is held was had by TryLock")
	}
	m.Unlock()
	if !m.TryLock() {
		t.Fatal("a lock that was unlocked is not had by TryLock")
	}
}

// TestLockWaitIsDurablyBlocking checks that virtual time passes while a goroutine waits for the lock. With a
// sync.Mutex, virtual time would stand still and the test would never end.
func TestLockWaitIsDurablyBlocking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Mutex
		began := time.Now()
		m.Lock()
		var wait sync.WaitGroup
		for range 3 {
			wait.Go(func() {
				m.Lock()
				defer m.Unlock()
				time.Sleep(time.Hour)
			})
		}
		time.Sleep(time.Hour)
		m.Unlock()
		wait.Wait()
		if took := time.Since(began); took != 4*time.Hour {
			t.Fatalf("four holders of an hour each took %v", took)
		}
	})
}

// TestTurnsAreInOrder checks that the goroutine that has waited longest gets the lock next, even if the last holder
// requests the lock again immediately.
func TestTurnsAreInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Mutex
		var order []int
		m.Lock()
		for i := range 5 {
			go func() {
				m.Lock()
				order = append(order, i)
				m.Unlock()
			}()
			synctest.Wait()
		}
		m.Unlock()
		m.Lock()
		order = append(order, 5)
		m.Unlock()
		for i, got := range order {
			if got != i {
				t.Fatalf("turns %v", order)
			}
		}
		if len(order) != 6 {
			t.Fatalf("turns %v", order)
		}
	})
}

func TestUnlockOfAnUnlockedPanics(t *testing.T) {
	for name, m := range map[string]*Mutex{"never locked": {}, "unlocked before": func() *Mutex {
		m := new(Mutex)
		if m.TryLock() {
			m.Unlock()
		}
		return m
	}()} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			m.Unlock()
		}()
	}
}

func BenchmarkLock(b *testing.B) {
	b.Run("alone/sync", func(b *testing.B) { alone(b, new(sync.Mutex)) })
	b.Run("alone/longlock", func(b *testing.B) { alone(b, new(Mutex)) })
	b.Run("contended/sync", func(b *testing.B) { contended(b, new(sync.Mutex)) })
	b.Run("contended/longlock", func(b *testing.B) { contended(b, new(Mutex)) })
}

func alone(b *testing.B, m sync.Locker) {
	for b.Loop() {
		m.Lock()
		m.Unlock() //nolint:staticcheck // the empty section is what is measured
	}
}

// contended runs four goroutines that each hold the lock repeatedly for about a microsecond, as an append does.
func contended(b *testing.B, m sync.Locker) {
	sink := 0
	b.SetParallelism(4)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			m.Lock()
			for i := range 1000 {
				sink += i
			}
			m.Unlock()
		}
	})
}
