package quota

import "time"

// bucket is a token bucket: it admits a certain amount per second, with bursts of up to half a second. Unlike
// rate.Limiter, it may go into debt. An amount larger than its capacity is admitted, and later callers wait until the
// debt is paid. It is not safe for concurrent use.
type bucket struct {
	rate   float64 // amount per second; 0 means no limit
	holds  float64 // capacity of the bucket
	left   float64 // amount in the bucket; if negative, the bucket is in debt
	filled time.Time
}

// burst is how long a bucket takes to fill.
const burst = 500 * time.Millisecond

// set sets the rate. The capacity does not fall below the minimum, which is passed as least. The first call fills the
// bucket, and later calls keep its content, even if that is a debt.
func (b *bucket) set(now time.Time, rate, least float64) {
	first := b.rate == 0
	b.fill(now)
	b.rate, b.holds = rate, max(rate*burst.Seconds(), least)
	if first {
		b.left, b.filled = b.holds, now
	}
	b.left = min(b.left, b.holds)
}

func (b *bucket) fill(now time.Time) {
	if d := now.Sub(b.filled); d > 0 {
		b.left = min(b.left+b.rate*d.Seconds(), b.holds)
		b.filled = now
	}
}

// wait returns the time until the bucket has the amount n, but at most waitMost. It returns 0 if the bucket has n now,
// or if there is no limit.
func (b *bucket) wait(now time.Time, n float64) time.Duration {
	if b.rate == 0 {
		return 0
	}
	b.fill(now)
	if b.left >= n {
		return 0
	}
	seconds := (n - b.left) / b.rate
	if seconds >= waitMost.Seconds() {
		return waitMost
	}
	return time.Duration(seconds*float64(time.Second)) + 1
}

// waitMost is the largest result of wait.
const waitMost = time.Hour

// take removes the amount n from the bucket, even if the bucket has less.
func (b *bucket) take(now time.Time, n float64) {
	if b.rate > 0 {
		b.fill(now)
		b.left -= n
	}
}
