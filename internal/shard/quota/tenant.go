package quota

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/security/access"
)

// Exceeded says that a call would pass a quota. Nothing was done.
type Exceeded struct {
	Tenant string
	Quota  access.Quota
	Limit  int64 // of the tenant in the whole store
	// RetryAfter is when the call may be repeated; 0: only what is deleted, or a higher quota, makes room for it.
	RetryAfter time.Duration
	words      string
}

// Error implements error.
func (e *Exceeded) Error() string {
	return fmt.Sprintf("tenant %s: the quota %s of %d is used up: %s", e.Tenant, e.Quota, e.Limit, e.words)
}

// Amount is what is stored, or is to be.
type Amount struct {
	Bytes   int64 `json:"bytes,omitempty"`
	Records int64 `json:"records,omitempty"`
}

func (a Amount) plus(b Amount) Amount { return Amount{a.Bytes + b.Bytes, a.Records + b.Records} }

func (a Amount) minus(b Amount) Amount { return Amount{a.Bytes - b.Bytes, a.Records - b.Records} }

// each makes an amount of what do gives for bytes and for records.
func each(do func(of func(Amount) int64) int64) Amount {
	return Amount{do(func(a Amount) int64 { return a.Bytes }), do(func(a Amount) int64 { return a.Records })}
}

// Tenant bounds what is done in those of its groups that this shard leads. Its rates, and the calls at a time, are the
// part of the tenant's that falls to as many of its groups. Safe for concurrent use.
type Tenant struct {
	set    *Set
	name   string
	prefix string

	mu       sync.Mutex
	quotas   access.Quotas
	part     float64 // of the groups of the tenant, that are led here
	calls    bucket
	bytes    bucket
	open     int64 // calls under way
	openMost int64
	over     chan struct{} // closed when a call ends; nil: nobody waits
	held     int64         // bytes of memory, by calls and messages that wait
	late     late
	stored   stored
	counts   counts
}

// stored is what groups led here may take in before the ledger is asked again. Guarded by Tenant.mu.
type stored struct {
	known    bool          // the ledger was read
	slack    Amount        // that may be stored beyond what was measured
	spent    Amount        // of slack
	next     Amount        // what was let in since the measurement began that is under way
	inFlight Amount        // let in, and not known to be stored or refused
	epoch    int64         // of measurements: what is given back counts only in that in which it was taken
	want     Amount        // the largest that waits for slack
	total    Amount        // what all shards store
	doubt    Amount        // of total and spent: what was under way may have been measured, too
	settled  bool          // each group was in the ledger once
	mine     Share         // as the ledger has it
	wrote    time.Time     // when that was written
	missing  time.Time     // since when there are groups that are in no share; zero: there are none
	changed  chan struct{} // closed when any of this changes
}

// counts are for metrics. Guarded by Tenant.mu.
type counts struct {
	calls, bytes int64
	refused      map[access.Quota]int64
	waited       map[access.Quota]int64
}

// Usage is what a tenant has used here.
type Usage struct {
	Quotas  access.Quotas // of the tenant in the whole store
	Part    float64       // of its groups, that are led here, and of its rates, that hold here; 0 to 1
	Stored  Amount        // by groups that are led here, as they were measured last, and what was let in since
	Calls   int64         // that were let in
	Bytes   int64         // that they have moved
	Open    int64         // calls under way
	Refused map[access.Quota]int64
	Waited  map[access.Quota]int64 // messages of streams, and calls that were kept until their turn
}

// Usage tells what was used until now.
func (t *Tenant) Usage() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Usage{
		Quotas: t.quotas, Part: t.part, Stored: t.stored.mine.Used.plus(t.stored.spent), Calls: t.counts.calls,
		Bytes: t.counts.bytes, Open: t.open,
		Refused: maps.Clone(t.counts.refused), Waited: maps.Clone(t.counts.waited),
	}
}

func newTenant(set *Set, t *access.Tenant) *Tenant {
	n := &Tenant{set: set, name: t.Name, prefix: t.Prefix, part: 1}
	n.stored.changed = make(chan struct{})
	n.counts.refused, n.counts.waited = map[access.Quota]int64{}, map[access.Quota]int64{}
	n.limit(t.Quotas, 1)
	return n
}

// Name of the tenant.
func (t *Tenant) Name() string { return t.name }

// limit sets the quotas, and the part of them that is this shard's.
func (t *Tenant) limit(quotas access.Quotas, part float64) {
	now := t.set.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.quotas, t.part = quotas, part
	t.calls.set(now, float64(quotas.CallsPerSecond)*part, 1)
	t.bytes.set(now, float64(quotas.BytesPerSecond)*part, 1)
	atOnce := t.calls.rate
	if atOnce == 0 {
		atOnce = turnsPerSecond
	}
	t.late.atOnce.set(now, atOnce, 1)
	if t.openMost = 0; quotas.CallsAtOnce > 0 {
		t.openMost = max(1, int64(float64(quotas.CallsAtOnce)*part))
	}
	t.freed()
}

// freed wakes those who wait for calls to end. Called with mu held.
func (t *Tenant) freed() {
	if t.over != nil {
		close(t.over)
		t.over = nil
	}
}

// refuse makes an error and counts it. Called with mu held.
func (t *Tenant) refuse(quota access.Quota, after time.Duration, words string) error {
	t.counts.refused[quota]++
	return &Exceeded{Tenant: t.name, Quota: quota, Limit: t.quotas.Of(quota), RetryAfter: after, words: words}
}

// openAgain is when a call may be repeated that found as many under way as may be.
const openAgain = 100 * time.Millisecond

// blocked says which quota keeps a call from beginning now, and for how long: of calls under way that is not known.
// Empty: none does. Called with mu held.
func (t *Tenant) blocked(now time.Time) (access.Quota, time.Duration) {
	if t.openMost > 0 && t.open >= t.openMost {
		return access.CallsAtOnce, openAgain
	}
	if wait := t.calls.wait(now, 1); wait > 0 {
		return access.CallsPerSecond, wait
	}
	if wait := t.bytes.wait(now, 0); wait > 0 {
		return access.BytesPerSecond, wait
	}
	return "", 0
}

// begun counts a call in. Called with mu held.
func (t *Tenant) begun(now time.Time) {
	t.open++
	t.calls.take(now, 1)
	t.counts.calls++
}

// heldMost is what calls and messages of a tenant may hold of the memory that all share while they wait, in bytes.
const heldMost = 16 << 20

// Await is Begin for the message of a stream: it waits where that refuses. holds is what it keeps in memory meanwhile,
// in bytes: where much is kept so already it is refused. Errors are *Exceeded, ErrStopping, or that of ctx.
func (t *Tenant) Await(ctx context.Context, holds int64) error {
	return t.until(ctx, holds, func(now time.Time) (access.Quota, time.Duration) {
		quota, wait := t.blocked(now)
		if quota == "" {
			t.begun(now)
		}
		return quota, wait
	})
}

// until tries until no quota is in the way. try is called with mu held.
func (t *Tenant) until(ctx context.Context, holds int64, try func(now time.Time) (access.Quota, time.Duration)) error {
	for first := true; ; first = false {
		wait, over, err := t.tried(first, holds, try)
		switch {
		case err != nil:
			return err
		case wait == 0 && first:
			return nil
		case wait > 0:
			err = t.set.pause(ctx, wait, over)
		}
		if err != nil || wait == 0 {
			t.release(holds)
			return err
		}
	}
}

// tried tries once. What has to wait for the first time is counted in. over is closed early, where that is known.
func (t *Tenant) tried(first bool, holds int64, try func(now time.Time) (access.Quota,
	time.Duration)) (wait time.Duration, over chan struct{}, err error) {
	now := t.set.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	quota, wait := try(now)
	if quota == "" {
		return 0, nil, nil
	}
	if first {
		if t.held > 0 && t.held+holds > heldMost {
			return 0, nil, t.refuse(quota, wait, "much waits for it already: try again later")
		}
		t.held += holds
		t.counts.waited[quota]++
	}
	if quota == access.CallsAtOnce {
		if t.over == nil {
			t.over = make(chan struct{})
		}
		over = t.over
	}
	return wait, over, nil
}

// End ends a call.
func (t *Tenant) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open--
	t.freed()
}

// Moved counts bytes of data that a call has written or read: whoever comes next waits them off.
func (t *Tenant) Moved(n int64) {
	if n == 0 {
		return
	}
	now := t.set.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes.take(now, float64(n))
	t.counts.bytes += n
	t.late.mean += (float64(n) - t.late.mean) / 16
}

// Move is Moved for the message of a stream, and waits first until what went before is waited off. holds, and errors,
// as of Await.
func (t *Tenant) Move(ctx context.Context, n, holds int64) error {
	return t.until(ctx, holds, func(now time.Time) (access.Quota, time.Duration) {
		if wait := t.bytes.wait(now, 0); wait > 0 {
			return access.BytesPerSecond, wait
		}
		t.bytes.take(now, float64(n))
		t.counts.bytes += n
		return "", 0
	})
}

// Reserved is room for what is about to be stored. The zero value is none.
type Reserved struct {
	tenant *Tenant
	amount Amount
	epoch  int64
}

const (
	// storePatience is how long a put waits for the ledger to grant room, where there may be some.
	storePatience = 2 * time.Second
	// storeAgain is when a put may be repeated that has waited so in vain.
	storeAgain = time.Second
)

// Store reserves room for what is to be stored; Done must follow where it answers nil. It waits for a moment where this
// shard has no room and the store as a whole may have some, unless it is in a hurry. Errors are *Exceeded, ErrStopping,
// or that of ctx.
func (t *Tenant) Store(ctx context.Context, n Amount, hurry bool) (Reserved, error) {
	var patience <-chan time.Time
	for {
		t.mu.Lock()
		quota, final := t.short(n)
		if quota == "" {
			t.stored.spent, t.stored.next, t.stored.inFlight = t.stored.spent.plus(n), t.stored.next.plus(n),
				t.stored.inFlight.plus(n)
			out := Reserved{t, n, t.stored.epoch}
			t.mu.Unlock()
			return out, nil
		}
		if final {
			err := t.refuse(quota, 0, "delete records, or have the quota raised")
			t.mu.Unlock()
			return Reserved{}, err
		}
		if patience == nil {
			if hurry || t.held > 0 && t.held+n.Bytes > heldMost {
				err := t.refuse(quota, storeAgain, "other shards may have room left, and others wait for it already: try again")
				t.mu.Unlock()
				return Reserved{}, err
			}
			t.held += n.Bytes
			defer t.release(n.Bytes)
		}
		t.stored.want = Amount{max(t.stored.want.Bytes, n.Bytes), max(t.stored.want.Records, n.Records)}
		changed := t.stored.changed
		t.mu.Unlock()
		if patience == nil {
			timer := time.NewTimer(storePatience)
			defer timer.Stop()
			patience = timer.C
		}
		t.set.Kick()
		select {
		case <-changed:
		case <-ctx.Done():
			return Reserved{}, ctx.Err()
		case <-t.set.closed:
			return Reserved{}, ErrStopping
		case <-patience:
			t.mu.Lock()
			err := t.refuse(quota, storeAgain, "other shards may have room left, and etcd has not granted it yet: try again")
			t.mu.Unlock() // before release
			return Reserved{}, err
		}
	}
}

// short says of which quota there is too little left here for n, and whether that is so in the whole store. Empty: of
// none. Called with mu held.
func (t *Tenant) short(n Amount) (quota access.Quota, final bool) {
	s := &t.stored
	for _, one := range []struct {
		quota access.Quota
		of    func(Amount) int64
	}{{access.StoredBytes, func(a Amount) int64 {
		return a.Bytes
	}}, {access.Records, func(a Amount) int64 { return a.Records }}} {
		limit, wanted := t.quotas.Of(one.quota), one.of(n)
		if limit == 0 || wanted == 0 || s.known && one.of(s.slack)-one.of(s.spent) >= wanted {
			continue
		}
		return one.quota, s.known && s.settled && one.of(s.total)+one.of(s.spent)-one.of(s.doubt)+wanted > limit
	}
	return "", false
}

// release counts out what does not wait any more.
func (t *Tenant) release(holds int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held -= holds
}

// Done says what became of what was to be stored: it surely was not, or it was, or may be.
func (r *Reserved) Done(surelyNot bool) {
	t := r.tenant
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.stored
	s.inFlight = s.inFlight.minus(r.amount)
	if surelyNot {
		// What was taken before the last measurement began was measured as if it were stored; the next one corrects that.
		if r.epoch == s.epoch {
			s.spent, s.next = s.spent.minus(r.amount), s.next.minus(r.amount)
		}
	}
	r.tenant = nil
}

// Add reserves more on top.
func (r *Reserved) Add(more Reserved) {
	if r.tenant == nil {
		*r = more
		return
	}
	r.amount, r.epoch = r.amount.plus(more.amount), min(r.epoch, more.epoch)
}
