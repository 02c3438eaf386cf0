// Package quota enforces the quotas of tenants. These limit how much a tenant's groups store together, the rate of
// calls to these groups, and the rate of bytes that the calls move. Each shard enforces them for the groups that it
// leads, with a part of the tenant's rates that is proportional to the number of these groups. Reads of views, which
// every copy answers, count at the shard that answers them. A ledger in etcd divides the storage quota among the
// shards. See docs/adr/0042-quotas-are-divided-among-leaders.md.
package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
)

// Etcd is the part of *registry.Store that holds the ledgers.
type Etcd interface {
	Ledgers(ctx context.Context, tenants []registry.TenantKey) ([]registry.Ledger, error)
	PutLedger(ctx context.Context, tenant string, value []byte, revision int64) (bool, error)
	AreRegistered(ctx context.Context, shards []string) (map[string]bool, error)
}

// Config configures a Set. All but Now and Pause are required.
type Config struct {
	Shard string // name of the shard that the Set belongs to
	Etcd  Etcd
	// Led calls tell for each group that this shard leads, with the amount of data in the group.
	Led   func(tell func(group string, stored Amount))
	Every time.Duration // time between two reads of the ledgers
	// Now and Pause replace the system's clock in tests. If they are nil, the system's clock is used. Pause waits for
	// the time d, but may return earlier.
	Now   func() time.Time
	Pause func(ctx context.Context, d time.Duration) error
}

// Set holds the tenants of a store and their limits on one shard. It is safe for concurrent use.
type Set struct {
	cfg     Config
	current atomic.Pointer[tenants]
	woken   chan struct{}
	closed  chan struct{}
	closing sync.Once
	taking  sync.Mutex
	looked  longlock.Mutex // held by the method look, so that only one call runs at a time
	kept    atomic.Int64   // number of calls from all tenants that wait for their turn
}

// tenants is an immutable list of tenants. Each Tenant in it is mutable.
type tenants struct{ byPrefix []*Tenant }

// New creates a Set without tenants. Call Run for its background work.
func New(cfg Config) *Set {
	return &Set{cfg: cfg, woken: make(chan struct{}, 1), closed: make(chan struct{})}
}

// ErrStopping is the error of calls that wait when the Set is closed.
var ErrStopping = errors.New("the shard is stopping")

// Close aborts all waiting calls with ErrStopping. It may be called again.
func (s *Set) Close() { s.closing.Do(func() { close(s.closed) }) }

func (s *Set) now() time.Time {
	if s.cfg.Now != nil {
		return s.cfg.Now()
	}
	return time.Now()
}

// pauseMost is the longest time after which a waiting call checks its quotas again, because they may have been raised.
const pauseMost = time.Second

// pause waits for d, but no longer than pauseMost. It returns earlier if early is closed, ctx is done or the Set is
// closed.
func (s *Set) pause(ctx context.Context, d time.Duration, early <-chan struct{}) error {
	d = min(d, pauseMost)
	if s.cfg.Pause != nil {
		return s.cfg.Pause(ctx, d)
	}
	select {
	case <-time.After(d):
		return nil
	case <-early:
		return nil
	case <-s.closed:
		return ErrStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Take adopts the tenants of a grants table. Tenants that the Set already has keep their usage.
func (s *Set) Take(list []access.Tenant) {
	s.taking.Lock()
	defer s.taking.Unlock()
	before := map[registry.TenantKey]*Tenant{}
	for _, t := range s.all() {
		before[registry.TenantKey{Name: t.name, Prefix: t.prefix}] = t
	}
	next := &tenants{}
	for i := range list {
		t := before[registry.TenantKey{Name: list[i].Name, Prefix: list[i].Prefix}]
		if t == nil {
			t = newTenant(s, &list[i])
		} else {
			t.mu.Lock()
			part := t.part
			t.mu.Unlock()
			t.limit(list[i].Quotas, part)
		}
		next.byPrefix = append(next.byPrefix, t)
	}
	slices.SortFunc(next.byPrefix, func(a, b *Tenant) int { return strings.Compare(a.prefix, b.prefix) })
	if len(next.byPrefix) == 0 {
		next = nil
	}
	s.current.Store(next)
	s.Wake()
}

func (s *Set) all() []*Tenant {
	if now := s.current.Load(); now != nil {
		return now.byPrefix
	}
	return nil
}

// of returns a group's tenant. Prefixes do not overlap, so only the last prefix that does not sort after the name can
// match.
func (n *tenants) of(group string) *Tenant {
	if n == nil {
		return nil
	}
	at, exact := slices.BinarySearchFunc(n.byPrefix, group, func(t *Tenant, group string) int {
		return strings.Compare(t.prefix, group)
	})
	if !exact {
		at--
	}
	if at < 0 || !strings.HasPrefix(group, n.byPrefix[at].prefix) {
		return nil
	}
	return n.byPrefix[at]
}

// Of caches a group's tenant between calls. The zero value is for a group without a tenant. It is safe for concurrent
// use.
type Of struct {
	set   *Set
	group string
	known atomic.Pointer[known]
}

type known struct {
	in     *tenants
	tenant *Tenant
}

// Group returns the Of that caches a group's tenant.
func (s *Set) Group(group string) *Of { return &Of{set: s, group: group} }

// Tenant returns the current tenant of the group, or nil if the group has no tenant.
func (o *Of) Tenant() *Tenant {
	now := o.set.current.Load()
	if now == nil {
		return nil
	}
	k := o.known.Load()
	if k == nil || k.in != now {
		k = &known{now, now.of(o.group)}
		o.known.Store(k)
	}
	return k.tenant
}

// Wake makes Run begin a round soon, because groups have new leaders, or because a call waits for storage quota.
func (s *Set) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

const (
	// wakesApart is the shortest time between two rounds of Run.
	wakesApart = 100 * time.Millisecond
	// lookShare is a factor. A round takes a noticeable amount of time if there are thousands of groups, so the pause
	// after each round is lookShare times as long as the round itself.
	lookShare = 20
)

// Run keeps this shard's limits up to date with the ledgers and with the groups that this shard leads, until ctx is
// done. After each round, Run calls told with the error of that round, or with nil if there is none.
func (s *Set) Run(ctx context.Context, told func(error)) {
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.woken:
		}
		if s.current.Load() == nil {
			continue
		}
		began := time.Now()
		err := s.look(ctx)
		if ctx.Err() != nil {
			return
		}
		told(err)
		backoff.Sleep(ctx, min(max(wakesApart, lookShare*time.Since(began)), s.cfg.Every))
	}
}

// lookTime bounds the duration of one round of Run.
const lookTime = 5 * time.Second

// look performs one round of Run. It measures the sizes of the groups that this shard leads, reads the ledgers, and
// rebalances each tenant.
func (s *Set) look(ctx context.Context) error {
	s.looked.Lock()
	defer s.looked.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	all, at := s.all(), map[*Tenant]*measured{}
	for _, t := range all {
		at[t] = t.beginMeasuring()
	}
	now := s.current.Load()
	s.cfg.Led(func(group string, stored Amount) {
		if m := at[now.of(group)]; m != nil {
			m.groups, m.used = m.groups+1, m.used.plus(stored)
		}
	})
	var keys []registry.TenantKey
	var asked []*Tenant
	for _, t := range all {
		if m := at[t]; m.groups > 0 || m.matters {
			asked, keys = append(asked, t), append(keys, registry.TenantKey{Name: t.name, Prefix: t.prefix})
		}
	}
	if len(asked) == 0 {
		return nil
	}
	found, err := s.cfg.Etcd.Ledgers(ctx, keys)
	if err != nil {
		return fmt.Errorf("quotas stay as they were last: %w", err)
	}
	var errs []error
	for i, t := range asked {
		errs = append(errs, t.rebalance(ctx, at[t], found[i]))
	}
	return errors.Join(errs...)
}

// measured is the result of measuring the groups that this shard leads. beginMeasuring creates it.
type measured struct {
	groups   int64
	used     Amount
	inFlight Amount // part of used that was admitted and may already be stored
	want     Amount
	left     Amount // part of the slack that is not used yet
	matters  bool   // the ledger must be read, even if this shard leads no group of the tenant
}

// beginMeasuring starts to count the amounts that are admitted while the measurement runs.
func (t *Tenant) beginMeasuring() *measured {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.stored
	s.epoch++
	s.next = Amount{}
	called := t.counts.calls > t.looked // a shard that leads none of the groups may read views of them
	t.looked = t.counts.calls
	m := &measured{used: s.inFlight, inFlight: s.inFlight, want: s.want, matters: called || !s.known || s.mine != Share{}}
	s.want = Amount{}
	if s.known {
		m.left = s.slack.minus(s.spent)
	}
	return m
}

// agedLooks is a factor: after agedLooks times Config.Every, a shard writes its share even if little has changed.
const agedLooks = 10

// conflictsMax is how often writing a share is retried if other shards change the ledger between the read and the
// write.
const conflictsMax = 5

// rebalance computes how much this shard may store, and writes the shard's share to the ledger unless the change is
// too small to be worth a write.
func (t *Tenant) rebalance(ctx context.Context, m *measured, found registry.Ledger) (err error) {
	var odd error // describes the bad parts of the ledger, which the next write leaves out
	defer func() {
		if odd != nil {
			err = errors.Join(fmt.Errorf("tenant %s: %w", t.name, odd), err)
		}
	}()
	for range conflictsMax {
		var ledger Ledger
		ledger, odd = ParseLedger(found.Value)
		t.mu.Lock()
		quotas := t.quotas
		t.groups = m.groups
		t.mu.Unlock()
		f := facts{
			shard: t.set.cfg.Shard, groups: m.groups, all: max(found.Groups, m.groups), used: m.used, want: m.want, left: m.left,
			limits: Amount{quotas.StoredBytes, quotas.Records}, odd: odd != nil,
		}
		// A shard that leads no group of the tenant gets the limits for one group, because calls may arrive before the next
		// round, and because it may hold copies from which views are read.
		t.limit(quotas, float64(max(m.groups, 1))/float64(max(f.all, 1)))
		if f.gone, err = t.gone(ctx, ledger, &f); err != nil {
			return err
		}
		f.patient = t.isPatient(ledger, &f)
		out := ledger.look(f)
		out.inFlight = m.inFlight
		old, is := ledger.Shards[f.shard]
		if f.limits == (Amount{}) && !is && odd == nil {
			return nil // the tenant has no storage quota, only rates
		}
		if !t.prepare(&out, old, is, f) {
			return nil
		}
		value, err := ledger.with(f.shard, &out)
		if err != nil {
			return fmt.Errorf("tenant %s: encode its ledger: %w", t.name, err)
		}
		done, err := t.set.cfg.Etcd.PutLedger(ctx, t.name, value, found.Revision)
		if err != nil {
			return err
		}
		if done {
			t.granted(&out)
			return nil
		}
		again, err := t.set.cfg.Etcd.Ledgers(ctx, []registry.TenantKey{{Name: t.name, Prefix: t.prefix}})
		if err != nil {
			return err
		}
		found = again[0]
	}
	return nil // other shards keep changing the ledger, so the next round tries again
}

// gone returns the shards in a ledger that are not registered. If each group is in exactly one share, gone does not ask
// etcd, because a lost shard's share must then remain until other shards lead its groups.
func (t *Tenant) gone(ctx context.Context, l Ledger, f *facts) ([]string, error) {
	groups, ask := f.groups, []string{}
	idle := false
	for name, s := range l.Shards {
		if name != f.shard {
			groups, idle, ask = sum(groups, s.Groups), idle || s.Groups == 0, append(ask, name)
		}
	}
	if len(ask) == 0 || groups == f.all && !idle {
		return nil, nil
	}
	registered, err := t.set.cfg.Etcd.AreRegistered(ctx, ask)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ask, func(name string) bool { return registered[name] }), nil
}

// isPatient reports whether some groups are in no share but may soon be in one. After a while it gives up and returns
// false, because a group that no shard can lead must not keep a tenant from using its quota.
func (t *Tenant) isPatient(l Ledger, f *facts) bool {
	known := f.groups
	for name, s := range l.Shards {
		if name != f.shard {
			known = sum(known, s.Groups)
		}
	}
	now := t.set.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if known >= f.all {
		t.stored.missing = time.Time{}
	} else if t.stored.missing.IsZero() {
		t.stored.missing = now
	}
	return now.Sub(t.stored.missing) <= agedLooks*t.set.cfg.Every
}

// prepare reports whether the share must be written. If not, it starts to use the share that is already in the
// ledger. If so, it stops using the slack that the write will give back, because other shards may take that slack as
// soon as the share is written.
func (t *Tenant) prepare(out *outlook, old Share, is bool, f facts) (write bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.stored
	f.aged = t.set.now().Sub(s.wrote) > agedLooks*t.set.cfg.Every
	write = out.isWorth(old, is, f)
	if !write {
		out.share = Share{Groups: old.Groups, Used: out.share.Used, Slack: old.top().minus(out.share.Used)}
		t.use(out)
		return false
	}
	out.share.Slack = each(func(of func(Amount) int64) int64 { return max(of(out.share.Slack), of(s.next)) })
	if s.known {
		left := each(func(of func(Amount) int64) int64 {
			return min(of(s.slack)-of(s.spent), of(out.share.Slack)-of(s.next))
		})
		s.slack = left.plus(s.spent)
	}
	return true
}

// granted starts to use the share that was written.
func (t *Tenant) granted(out *outlook) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stored.wrote = t.set.now()
	t.use(out)
}

// use puts a share that is in the ledger into effect. Called with mu held.
func (t *Tenant) use(out *outlook) {
	s := &t.stored
	s.known, s.slack, s.spent = true, out.share.Slack, s.next
	s.total, s.settled, s.mine, s.doubt = out.total, out.settled, out.share, out.inFlight.plus(s.next)
	close(s.changed)
	s.changed = make(chan struct{})
}
