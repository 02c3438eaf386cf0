package message

import "sync/atomic"

// Budget is the Allowance of a process: calls together take at most a number of bytes, or of whatever else is counted.
// If nothing is taken at the moment, any amount is admitted, so that no caller is refused indefinitely. Budget is safe
// for concurrent use.
type Budget struct {
	limit  int64
	refuse func(limit int64) error
	used   *atomic.Int64
}

// NewBudget returns a budget of which nothing is taken. The function refuse makes the error of an amount that would
// exceed the limit.
func NewBudget(limit int64, refuse func(limit int64) error) *Budget {
	return &Budget{limit: limit, refuse: refuse, used: new(atomic.Int64)}
}

// Within returns a budget with a lower limit, which counts the same amounts. What is taken from one is taken from both.
func (b *Budget) Within(limit int64) *Budget {
	return &Budget{limit: limit, refuse: b.refuse, used: b.used}
}

// Take implements Allowance. An amount that is refused is never counted, because others would be refused for it.
func (b *Budget) Take(n, have int64) error {
	for {
		used := b.used.Load()
		if used+n > b.limit && used != have {
			return b.refuse(b.limit)
		}
		if b.used.CompareAndSwap(used, used+n) {
			return nil
		}
	}
}

// Add implements Allowance.
func (b *Budget) Add(n int64) { b.used.Add(n) }

// Used returns the amount that is taken now.
func (b *Budget) Used() int64 { return b.used.Load() }
