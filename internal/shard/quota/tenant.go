package quota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/security/access"
)

// Exceeded is the error for a call that would exceed a quota. The call had no effect.
type Exceeded struct {
	Tenant string
	Quota  access.Quota
	Limit  int64 // the tenant's limit in the whole store
	// RetryAfter is the time after which the call may be retried. 0 means that only deletes or a higher quota make the
	// call possible.
	RetryAfter time.Duration
	state      string // format of a sentence about the quota's state; its arguments are the quota and the limit
	words      string // the reason, and what the caller can do
}

// Error implements error.
func (e *Exceeded) Error() string {
	return fmt.Sprintf("tenant %s: %s: %s", e.Tenant, fmt.Sprintf(e.state, e.Quota, e.Limit), e.words)
}

// Amount is an amount of data, either stored or to be stored.
type Amount struct {
	Bytes   int64 `json:"bytes,omitempty"`
	Records int64 `json:"records,omitempty"`
}

// plus adds two amounts. The result saturates at the largest number, because an absurd share in a ledger must not
// overflow, which would allow other shards to store more.
func (a Amount) plus(b Amount) Amount {
	return Amount{sum(a.Bytes, b.Bytes), sum(a.Records, b.Records)}
}

func sum(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func (a Amount) minus(b Amount) Amount { return Amount{a.Bytes - b.Bytes, a.Records - b.Records} }

// each calls do once for the bytes of amounts and once for their records, and returns an Amount with the two results.
func each(do func(of func(Amount) int64) int64) Amount {
	return Amount{do(func(a Amount) int64 { return a.Bytes }), do(func(a Amount) int64 { return a.Records })}
}

// Tenant bounds the calls to those groups of a tenant that this shard leads. The Tenant gets a part of the tenant's
// rates and of its limit on concurrent calls, in proportion to the number of these groups. It is safe for concurrent
// use.
type Tenant struct {
	set    *Set
	name   string
	prefix string

	mu       sync.Mutex
	quotas   access.Quotas
	part     float64 // part of the tenant's groups that this shard leads; 0 to 1
	groups   int64   // number of groups that this shard leads, as last counted
	calls    bucket
	bytes    bucket
	open     int64 // number of calls in progress
	openMost int64
	over     chan struct{} // closed when a call ends; nil if no caller waits
	held     int64         // bytes of memory held by waiting calls and messages
	late     late
	stored   stored
	counts   counts
	looked   int64 // number of admitted calls when the last measurement began
}

// stored tracks how much more the groups led by this shard may store until the shard reads the ledger again. Guarded
// by Tenant.mu.
type stored struct {
	known    bool   // the ledger has been read
	slack    Amount // amount that may be stored beyond the measured amount
	spent    Amount // used part of slack
	next     Amount // admitted since the current measurement began
	inFlight Amount // amount admitted by reservations whose outcome is not known yet
	// epoch numbers the measurements. A released amount is subtracted only in the epoch in which it was reserved.
	epoch int64
	want  Amount // the largest amount that a waiting write needs
	total Amount // amount that all shards store
	// doubt is the part of total and spent that may be counted twice, because writes that were in progress during the
	// measurement may already be included in it.
	doubt   Amount
	settled bool          // each group was in exactly one share
	mine    Share         // this shard's share in the ledger
	wrote   time.Time     // time when mine was written
	missing time.Time     // time since which some groups are in no share; zero if each group is in one
	changed chan struct{} // closed when any of these fields changes
}

// counts holds counters for metrics. Guarded by Tenant.mu.
type counts struct {
	calls, bytes int64
	refused      map[access.Quota]int64
	waited       map[access.Quota]int64
}

// Usage describes how much of a tenant's quotas this shard uses.
type Usage struct {
	Quotas access.Quotas // quotas of the tenant in the whole store
	// Part is the fraction, from 0 to 1, of the tenant's groups that this shard leads. The shard enforces the same
	// fraction of the tenant's rates.
	Part    float64
	Stored  Amount // stored by the groups that this shard leads, as last measured, plus the amount admitted since
	Calls   int64  // number of admitted calls
	Bytes   int64  // bytes that these calls moved
	Open    int64  // number of calls in progress
	Groups  int64  // number of groups that this shard leads, as last counted
	Refused map[access.Quota]int64
	Waited  map[access.Quota]int64 // delayed messages of streams, and delayed calls
}

// Usage returns the present usage.
func (t *Tenant) Usage() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Usage{
		Quotas: t.quotas, Part: t.part, Stored: t.stored.mine.Used.plus(t.stored.spent), Calls: t.counts.calls,
		Bytes: t.counts.bytes, Open: t.open, Groups: t.groups,
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

// Name returns the tenant's name.
func (t *Tenant) Name() string { return t.name }

// limit sets the quotas, and the part of them that this shard enforces.
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

// freed wakes the callers that wait until another call has ended. Called with mu held.
func (t *Tenant) freed() {
	if t.over != nil {
		close(t.over)
		t.over = nil
	}
}

// refuse returns an Exceeded error, and counts the refusal. Called with mu held.
func (t *Tenant) refuse(quota access.Quota, after time.Duration, words string) error {
	t.counts.refused[quota]++
	return &Exceeded{Tenant: t.name, Quota: quota, Limit: t.quotas.Of(quota), RetryAfter: after, state: usedUp,
		words: words}
}

// These formats describe the state of a quota in error messages.
const (
	usedUp     = "the quota %s of %d is used up"
	notGranted = "nothing is granted yet of the quota %s of %d"
	partUsedUp = "what this shard was granted of the quota %s of %d is used up"
)

// refuseForNow does the same as refuse, but for a write that may be possible once etcd has granted this shard more of
// a quota. The error includes the reason why the write does not wait for the grant. Called with mu held.
func (t *Tenant) refuseForNow(quota access.Quota, why string) error {
	state, words := partUsedUp, "other shards may have some left, "+why
	if s := &t.stored; !s.known || amountOf(quota, s.slack) == 0 && amountOf(quota, s.mine.Used) == 0 {
		state, words = notGranted, "this shard asks etcd for its part, "+why
	}
	err := t.refuse(quota, storeAgain, words)
	if e, ok := errors.AsType[*Exceeded](err); ok {
		e.state = state
	}
	return err
}

// amountOf returns the part of an amount that a storage quota limits, which is its bytes or its records.
func amountOf(quota access.Quota, a Amount) int64 {
	if quota == access.Records {
		return a.Records
	}
	return a.Bytes
}

// openAgain is the retry delay for a call that was refused because too many calls were in progress.
const openAgain = 100 * time.Millisecond

// blocked returns the quota that keeps a call from beginning now, and the time until the call may begin. For the
// quota of concurrent calls that time is unknown, so blocked returns openAgain. If the returned quota is empty, the
// call may begin. Called with mu held.
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

// begun counts a call that has begun. Called with mu held.
func (t *Tenant) begun(now time.Time) {
	t.open++
	t.calls.take(now, 1)
	t.counts.calls++
}

// heldMost is how many bytes of shared memory the waiting calls and messages of one tenant may hold.
const heldMost = 16 << 20

// Await does the same as Begin, but for a message of a stream. It waits whenever Begin would refuse. The argument
// `holds` is the memory in bytes that the message occupies while it waits. If the waiting messages already occupy too
// much, the message is refused. Await returns *Exceeded, ErrStopping, or ctx's error.
func (t *Tenant) Await(ctx context.Context, holds int64) error {
	return t.until(ctx, holds, func(now time.Time) (access.Quota, time.Duration) {
		quota, wait := t.blocked(now)
		if quota == "" {
			t.begun(now)
		}
		return quota, wait
	})
}

// until calls try again and again, with pauses, until no quota blocks the call any more. It holds mu during each call
// of try.
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

// tried calls try once. If a quota blocks the call, it returns how long to wait before the next attempt. At the first
// attempt, it also counts the memory of a call that must wait. If the blocking quota limits concurrent calls, the
// returned channel is closed when another call ends.
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

// End ends a call that Begin admitted.
func (t *Tenant) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open--
	t.freed()
}

// Moved counts the bytes of data that a call has written or read. Later calls wait until the rate allows them.
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

// Move does the same as Moved, but for a message of a stream. It first waits until the rate allows the message. The
// argument `holds` is the memory in bytes that the message occupies while it waits. Move returns the same errors as
// Await.
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

// Reserved is a reservation for data that is about to be stored. The zero value reserves nothing.
type Reserved struct {
	tenant *Tenant
	amount Amount
	epoch  int64
}

const (
	// storePatience is how long a put waits for a grant from the ledger, if one is possible.
	storePatience = 2 * time.Second
	// storeAgain is the retry delay for a put that has waited storePatience without success.
	storeAgain = time.Second
)

// Store reserves the amount n for data that will be stored. If it returns nil, the caller must call Done. If this
// shard's slack is used up but other shards may have some, Store waits for up to storePatience, unless hurry is set.
// Store returns *Exceeded, ErrStopping, or the error of ctx.
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
				err := t.refuseForNow(quota, "and others wait for it already: try again")
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
			patience = time.After(storePatience)
		}
		t.set.Wake()
		select {
		case <-changed:
		case <-ctx.Done():
			return Reserved{}, ctx.Err()
		case <-t.set.closed:
			return Reserved{}, ErrStopping
		case <-patience:
			t.mu.Lock()
			err := t.refuseForNow(quota, "and has no answer yet: try again")
			t.mu.Unlock() // the deferred release locks mu itself
			return Reserved{}, err
		}
	}
}

// short returns a quota of which this shard has too little left to store the amount n. If too little of it is left in
// the whole store, final is true. If all quotas suffice, the returned quota is empty. Called with mu held.
func (t *Tenant) short(n Amount) (quota access.Quota, final bool) {
	s := &t.stored
	for _, quota := range [...]access.Quota{access.StoredBytes, access.Records} {
		of := func(a Amount) int64 { return amountOf(quota, a) }
		limit, wanted := t.quotas.Of(quota), of(n)
		if limit == 0 || wanted == 0 || s.known && of(s.slack)-of(s.spent) >= wanted {
			continue
		}
		return quota, s.known && s.settled && of(s.total)+of(s.spent)-of(s.doubt)+wanted > limit
	}
	return "", false
}

// release subtracts the memory of a caller that no longer waits.
func (t *Tenant) release(holds int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held -= holds
}

// Done reports the outcome of a reservation. surelyNot means that nothing was stored; otherwise the data was stored,
// or may have been.
func (r *Reserved) Done(surelyNot bool) {
	t := r.tenant
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.stored
	s.inFlight = s.inFlight.minus(r.amount)
	// If the amount was reserved before the last measurement began, that measurement has counted it as if it were
	// stored. The next measurement corrects that.
	if surelyNot && r.epoch == s.epoch {
		s.spent, s.next = s.spent.minus(r.amount), s.next.minus(r.amount)
	}
	r.tenant = nil
}

// Add adds another reservation to this one.
func (r *Reserved) Add(more Reserved) {
	if r.tenant == nil {
		*r = more
		return
	}
	r.amount, r.epoch = r.amount.plus(more.amount), min(r.epoch, more.epoch)
}
