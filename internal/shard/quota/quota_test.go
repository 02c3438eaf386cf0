package quota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// clock is a clock that advances only when a caller pauses.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pause(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return ctx.Err()
}

// memory is a stand-in for etcd that keeps everything in memory.
type memory struct {
	mu      sync.Mutex
	groups  []string
	ledgers map[string]registry.Ledger
	down    bool
	gone    []string // shards that are not registered
	writes  int
}

var errDown = errors.New("etcd is down")

func (m *memory) Ledgers(_ context.Context, keys []registry.TenantKey) (out []registry.Ledger, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, errDown
	}
	for _, k := range keys {
		l := m.ledgers[k.Name]
		for _, g := range m.groups {
			if strings.HasPrefix(g, k.Prefix) {
				l.Groups++
			}
		}
		out = append(out, l)
	}
	return out, nil
}

func (m *memory) AreRegistered(_ context.Context, shards []string) (map[string]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]bool{}
	for _, name := range shards {
		out[name] = !slices.Contains(m.gone, name)
	}
	return out, nil
}

func (m *memory) PutLedger(_ context.Context, name string, value []byte, revision int64) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return false, errDown
	}
	if m.ledgers[name].Revision != revision {
		return false, nil
	}
	m.ledgers[name] = registry.Ledger{Value: value, Revision: revision + 1}
	m.writes++
	return true, nil
}

// play is a set of shards that lead a tenant's groups.
type play struct {
	etcd   *memory
	clock  *clock
	sets   map[string]*Set
	leader map[string]string // each group's leader
	stored map[string]Amount // the stored amount of each group
}

func newPlay(quotas access.Quotas, groups int, shards ...string) *play {
	p := &play{
		etcd: &memory{ledgers: map[string]registry.Ledger{}}, clock: &clock{now: time.Unix(1_800_000_000, 0)},
		sets:   map[string]*Set{},
		leader: map[string]string{}, stored: map[string]Amount{},
	}
	for i := range groups {
		name := fmt.Sprintf("a-%d", i)
		p.etcd.groups = append(p.etcd.groups, name)
		p.leader[name] = shards[i%len(shards)]
	}
	p.etcd.groups = append(p.etcd.groups, "b-0")
	for _, shard := range shards {
		s := New(Config{
			Shard: shard, Etcd: p.etcd, Every: time.Second, Now: p.clock.Now, Pause: p.clock.pause,
			Led: func(tell func(string, Amount)) {
				for g, l := range p.leader {
					if l == shard {
						tell(g, p.stored[g])
					}
				}
			},
		})
		s.Take([]access.Tenant{{Name: "a", Prefix: "a-", Quotas: quotas}})
		p.sets[shard] = s
	}
	return p
}

func (p *play) tenant(shard string) *Tenant { return p.sets[shard].Group("a-0").Tenant() }

func (p *play) look(t rapid.TB, shards ...string) {
	for _, shard := range shards {
		must.OK(t, p.sets[shard].look(context.Background()))
	}
}

// put stores an amount in a group, if the group's leader has quota left. final means that no shard has any quota
// left.
func (p *play) put(group string, n Amount) (done, final bool) {
	t := p.tenant(p.leader[group])
	t.mu.Lock()
	quota, final := t.short(n)
	if quota != "" {
		t.stored.want = n
		t.mu.Unlock()
		return false, final
	}
	t.mu.Unlock()
	r, err := t.Store(context.Background(), n, false)
	if err != nil {
		return false, false
	}
	p.stored[group] = p.stored[group].plus(n)
	r.Done(false)
	return true, false
}

func (p *play) total() (sum Amount) {
	for _, a := range p.stored {
		sum = sum.plus(a)
	}
	return sum
}

func exceeded(t *testing.T, err error, quota access.Quota, retry bool) *Exceeded {
	t.Helper()
	var e *Exceeded
	if !errors.As(err, &e) || e.Quota != quota || e.Tenant != "a" || e.Limit == 0 || e.RetryAfter > 0 != retry {
		t.Fatalf("%v, %+v; wanted is that %s is used up, and to be tried again: %v", err, e, quota, retry)
	}
	return e
}

func TestGroupsFindTheirTenant(t *testing.T) {
	s := New(Config{})
	of := map[string]*Of{}
	for _, name := range []string{"a", "a-", "a-1", "ab-1", "ab", "b-x", "0", "zz"} {
		of[name] = s.Group(name)
		if of[name].Tenant() != nil {
			t.Errorf("%s has a tenant, and there is none", name)
		}
	}
	one := access.Quotas{Records: 1}
	s.Take([]access.Tenant{{Name: "three", Prefix: "z", Quotas: one}, {Name: "two", Prefix: "ab-", Quotas: one},
		{Name: "one", Prefix: "a-", Quotas: one}})
	for name, want := range map[string]string{"a": "", "a-": "one", "a-1": "one", "ab-1": "two", "ab": "", "b-x": "",
		"0": "", "zz": "three"} {
		got := ""
		if tenant := of[name].Tenant(); tenant != nil {
			got = tenant.Name()
		}
		if got != want {
			t.Errorf("%s is of %q, and must be of %q", name, got, want)
		}
	}
	before := of["a-1"].Tenant()
	s.Take([]access.Tenant{{Name: "one", Prefix: "a-", Quotas: access.Quotas{Records: 2}}})
	if of["a-1"].Tenant() != before || of["zz"].Tenant() != nil {
		t.Error("a tenant that stays is another one, or one that went is there")
	}
	s.Take(nil)
	if of["a-1"].Tenant() != nil {
		t.Error("there is a tenant, and there is none")
	}
}

// If a tenant makes ten times as many calls as its rate allows, the number of admitted calls in ten seconds differs
// by at most a tenth from what the rate allows.
func TestRatesHold(t *testing.T) {
	const limit, seconds = 100, 10
	p := newPlay(access.Quotas{CallsPerSecond: limit}, 1, "s")
	a, let := p.tenant("s"), 0
	for end := p.clock.Now().Add(seconds * time.Second); p.clock.Now().Before(end); {
		if err := a.Begin(context.Background(), 0); err == nil {
			let++
			a.End()
		} else if e := exceeded(t, err, access.CallsPerSecond, true); e.RetryAfter > turnMost {
			t.Fatalf("a call may come again after %v", e.RetryAfter)
		}
		_ = p.clock.pause(context.Background(), time.Second/(10*limit))
	}
	if let < limit*seconds*9/10 || let > limit*seconds*11/10 {
		t.Errorf("%d calls were let in within %d s, of %d", let, seconds, limit)
	}
}

// A call with more data than the rate allows per second is admitted, and later calls wait accordingly.
func TestBytesHold(t *testing.T) {
	const limit, seconds, call = 1000, 10, 2500
	for _, waits := range []bool{false, true} {
		p := newPlay(access.Quotas{BytesPerSecond: limit}, 1, "s")
		a, let := p.tenant("s"), 0
		for end := p.clock.Now().Add(seconds * time.Second); p.clock.Now().Before(end); {
			if waits {
				must.OK(t, a.Move(context.Background(), call, 0))
				if p.clock.Now().Before(end) {
					let += call
				}
				continue
			}
			if err := a.Begin(context.Background(), 0); err == nil {
				let += call
				a.Moved(call)
				a.End()
			} else {
				exceeded(t, err, access.BytesPerSecond, true)
			}
			_ = p.clock.pause(context.Background(), time.Millisecond)
		}
		if let < limit*seconds*9/10-call || let > limit*seconds*11/10+call {
			t.Errorf("%d bytes were let in within %d s, of %d", let, seconds, limit)
		}
	}
}

func TestCallsAtOnce(t *testing.T) {
	p := newPlay(access.Quotas{CallsAtOnce: 2}, 1, "s")
	p.sets["s"].cfg.Pause = nil
	a := p.tenant("s")
	for range 2 {
		must.OK(t, a.Begin(context.Background(), 0))
	}
	exceeded(t, a.Begin(context.Background(), 0), access.CallsAtOnce, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Await(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that waits ends with %v", err)
	}
	began := make(chan error)
	go func() { began <- a.Await(t.Context(), 0) }()
	a.End()
	if err := <-began; err != nil {
		t.Error(err)
	}
	exceeded(t, a.Begin(context.Background(), 0), access.CallsAtOnce, true)
	go func() { began <- a.Await(t.Context(), 0) }()
	p.sets["s"].Close()
	if err := <-began; !errors.Is(err, ErrStopping) {
		t.Errorf("a call that waits while the shard stops ends with %v", err)
	}
}

// The memory of waiting messages is limited. Further messages are refused.
func TestWhatWaitsIsBounded(t *testing.T) {
	p := newPlay(access.Quotas{BytesPerSecond: 1}, 1, "s")
	p.sets["s"].cfg.Pause = nil
	a := p.tenant("s")
	a.Moved(1_000_000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range 4 {
		go func() { ended <- a.Move(ctx, 1, heldMost/4) }()
	}
	for a.Usage().Waited[access.BytesPerSecond] < 4 {
		runtime.Gosched()
	}
	exceeded(t, a.Move(ctx, 1, 1), access.BytesPerSecond, true)
	exceeded(t, a.Await(ctx, 1), access.BytesPerSecond, true)
	cancel()
	for range 4 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if err := a.Move(ctx, 1, 2*heldMost); !errors.Is(err, context.Canceled) || a.held != 0 {
		t.Errorf("one alone: %v; %d bytes are held", err, a.held)
	}
}

// Rates are divided in the same way as the groups.
func TestRatesAreDividedByGroups(t *testing.T) {
	p := newPlay(access.Quotas{CallsPerSecond: 400, CallsAtOnce: 8}, 4, "s", "o")
	p.leader["a-1"] = "s"
	p.look(t, "s", "o")
	for shard, part := range map[string]float64{"s": 0.75, "o": 0.25} {
		a := p.tenant(shard)
		if a.part != part || a.calls.rate != 400*part || a.openMost != int64(8*part) {
			t.Errorf("%s: %v of it, %v calls, %d at once", shard, a.part, a.calls.rate, a.openMost)
		}
	}
	p.leader["a-3"] = "s"
	p.look(t, "s", "o")
	if a := p.tenant("s"); a.part != 1 {
		t.Errorf("%v of it where all groups are led here", a.part)
	}
	if a := p.tenant("o"); a.part != 0.25 {
		t.Errorf("%v of it for a group that comes", a.part)
	}
}

// A shard that leads none of a tenant's groups answers reads of views. Its part of the rates follows the number of
// groups, too.
func TestAShardWithoutGroupsFollowsTheirNumber(t *testing.T) {
	p := newPlay(access.Quotas{CallsPerSecond: 100, StoredBytes: 1 << 20}, 1, "x", "y")
	for range 3 {
		p.look(t, "x", "y")
	}
	if part := p.tenant("y").Usage().Part; part != 1 {
		t.Fatalf("a shard beside the leader of the only group has a part of %v", part)
	}
	for i := 1; i < 10; i++ {
		p.etcd.groups = append(p.etcd.groups, fmt.Sprintf("a-%d", i))
	}
	must.OK(t, p.tenant("y").Begin(context.Background(), 0))
	p.tenant("y").End()
	p.look(t, "x", "y")
	if part := p.tenant("y").Usage().Part; part != 0.1 {
		t.Errorf("a shard that leads none of 10 groups has a part of %v", part)
	}
}

func TestStoredQuotasHold(t *testing.T) {
	p := newPlay(access.Quotas{StoredBytes: 1000, Records: 10}, 1, "s")
	p.look(t, "s")
	a := p.tenant("s")
	var kept []Reserved
	for range 10 {
		r, err := a.Store(t.Context(), Amount{10, 1}, false)
		must.OK(t, err)
		kept = append(kept, r)
	}
	_, err := a.Store(t.Context(), Amount{1, 1}, false)
	exceeded(t, err, access.Records, false)
	kept[0].Done(true)
	kept[0].Done(true) // a second call of Done does nothing
	if _, err := a.Store(t.Context(), Amount{10, 1}, false); err != nil {
		t.Fatalf("what was given back is no room: %v", err)
	}
	if _, err := a.Store(t.Context(), Amount{900, 0}, false); err != nil {
		t.Fatalf("a record that is replaced: %v", err)
	}
	_, err = a.Store(t.Context(), Amount{1, 0}, false)
	exceeded(t, err, access.StoredBytes, false)
	if err := a.Begin(context.Background(), 0); err != nil {
		t.Errorf("a call is refused for what is stored: %v", err)
	}
}

// If etcd has granted no quota yet, a put's error gives that as the reason, and does not claim that the quota is used
// up.
func TestARefusalSaysWhetherAnythingWasGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(access.Quotas{StoredBytes: 100, Records: 10}, 2, "x", "y")
		refused := func(n Amount, words string) {
			t.Helper()
			_, err := p.tenant("x").Store(t.Context(), n, false)
			exceeded(t, err, access.StoredBytes, !strings.Contains(words, "is used up: delete"))
			if !strings.HasPrefix(err.Error(), "tenant a: "+words) {
				t.Errorf("%v", err)
			}
		}
		refused(Amount{Bytes: 1}, "nothing is granted yet of the quota storedBytes of 100: this shard asks etcd")
		p.look(t, "x", "y", "x", "y")
		refused(Amount{Bytes: 70}, "what this shard was granted of the quota storedBytes of 100 is used up: other shards may")
		refused(Amount{Bytes: 101}, "the quota storedBytes of 100 is used up: delete")
	})
}

// Without etcd, granted quota remains usable. Further writes are refused, and may be retried.
func TestEtcdAway(t *testing.T) {
	p := newPlay(access.Quotas{StoredBytes: 1000}, 2, "s", "o")
	p.look(t, "s", "o", "s")
	slack := p.tenant("s").stored.slack.Bytes
	if slack == 0 || slack >= 1000 {
		t.Fatalf("%d bytes are granted", slack)
	}
	p.etcd.down = true
	if err := p.sets["s"].look(t.Context()); !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	if done, _ := p.put("a-0", Amount{Bytes: slack}); !done {
		t.Error("what was granted is refused")
	}
	_, err := p.tenant("s").Store(t.Context(), Amount{Bytes: 1}, true)
	exceeded(t, err, access.StoredBytes, true)
	if done, final := p.put("a-0", Amount{Bytes: 1}); done || final {
		t.Errorf("beyond what was granted: done %v, final %v", done, final)
	}
}

// TestOddLedgersAreReplaced checks ledgers that contain unreadable or impossible values. Such values must not keep a
// tenant from using its quota, and must not give it more than its quota. The method look returns an error that names
// these values, and writes the ledger without them.
func TestOddLedgersAreReplaced(t *testing.T) {
	const limit = 1000
	for name, value := range map[string]string{
		"no JSON":               "x",
		"of another kind":       `{"shards":[]}`,
		"a negative share":      `{"shards":{"o":{"groups":1,"used":{"bytes":-9000}}}}`,
		"a share of nobody":     `{"shards":{"gone":{"groups":-1}}}`,
		"a number that is huge": `{"shards":{"o":{"groups":1,"used":{"bytes":18446744073709551615}}}}`,
		"more than can be": `{"shards":{"o":{"groups":1,"used":{"bytes":9223372036854775807},` +
			`"slack":{"bytes":9223372036854775807}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(access.Quotas{StoredBytes: limit}, 2, "s", "o")
			p.etcd.ledgers["a"] = registry.Ledger{Value: []byte(value), Revision: 1}
			err := p.sets["s"].look(t.Context())
			odd := name != "more than can be"
			if (err != nil) != odd || odd && !strings.Contains(err.Error(), "tenant a: its ledger") {
				t.Errorf("it is told as %v", err)
			}
			for range 3 {
				p.look(t, "o", "s")
				granted := int64(0)
				for _, shard := range []string{"s", "o"} {
					granted += p.tenant(shard).stored.slack.Bytes
				}
				if granted > limit {
					t.Errorf("%d bytes are granted", granted)
				}
			}
			if done, _ := p.put("a-0", Amount{Bytes: 10}); !done {
				t.Error("a put within the quota is refused")
			}
			p.look(t, "s", "o", "s")
			// In the settled ledger, no shard has anything to write. The invalid share belongs to a shard that never registers
			// again.
			l := p.etcd.ledgers["a"]
			l.Value = []byte(strings.Replace(string(l.Value), `{"shards":{`, `{"shards":{"gone":{"groups":-1},`, 1))
			p.etcd.ledgers["a"] = l
			if err := p.sets["s"].look(t.Context()); err == nil {
				t.Error("an odd share in a settled ledger is not told")
			}
			p.look(t, "s")
		})
	}
}

// FuzzLedger checks that a shard takes no more than its limits allow, whatever the ledger contains.
func FuzzLedger(f *testing.F) {
	f.Add([]byte(`{"shards":{"o":{"groups":1,"used":{"bytes":1,"records":2},"slack":{"bytes":5}}}}`), int64(1), int64(2),
		int64(50))
	f.Add([]byte(`{"shards":{"o":{"used":{"bytes":9223372036854775807},"slack":{"bytes":9223372036854775807}},`+
		`"s":{"groups":9}}}`), int64(1), int64(1), int64(1))
	f.Add([]byte(`null`), int64(0), int64(0), int64(0))
	f.Fuzz(func(t *testing.T, text []byte, groups, all, used int64) {
		l, _ := ParseLedger(text)
		const limit = 1000
		groups, used = groups&1023, used&2047
		in := facts{shard: "s", groups: groups, all: max(groups, all&1023), used: Amount{used, used}, want: Amount{1, 1},
			limits: Amount{limit, limit}}
		out := l.look(in)
		for name, share := range l.Shards {
			if share.negative() {
				t.Errorf("shard %s: %+v", name, share)
			}
			top := share.top()
			free := Amount{max(0, limit-top.Bytes), max(0, limit-top.Records)}
			if name != "s" && !out.share.Slack.within(free) {
				t.Errorf("%+v is taken beside %+v", out.share, share)
			}
		}
		value, err := l.with("s", &out)
		must.OK(t, err)
		if _, err := ParseLedger(value); err != nil {
			t.Errorf("%s: %v", value, err)
		}
	})
}

// within reports whether an amount is not negative and is at most the other amount.
func (a Amount) within(other Amount) bool {
	return min(a.Bytes, a.Records) >= 0 && a.Bytes <= other.Bytes && a.Records <= other.Records
}

// TestLedgersHold performs puts, calls of look, deletes, leadership transfers and shard stops in random order. The
// shards together never store more than the quota or, if they stored more at the beginning, more than that amount. In
// the end, all of the quota can be used.
func TestLedgersHold(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		const limit, records = 10_000, 100
		shards := []string{"s0", "s1", "s2", "s3"}[:rapid.IntRange(1, 4).Draw(t, "shards")]
		p := newPlay(access.Quotas{StoredBytes: limit, Records: records}, rapid.IntRange(1, 6).Draw(t, "groups"), shards...)
		groups := slices.Sorted(maps.Keys(p.leader))
		var before Amount // groups may hold data before they get a tenant
		if rapid.Bool().Draw(t, "filled") {
			for _, g := range groups {
				p.stored[g] = Amount{Bytes: rapid.Int64Range(0, 6000).Draw(t, "there"), Records: rapid.Int64Range(0, 60).
					Draw(t, "there")}
			}
			before = p.total()
		}
		any := func(what string, of []string) string { return rapid.SampledFrom(of).Draw(t, what) }
		alive := func() []string { return slices.Sorted(maps.Keys(p.sets)) }
		holds := func() {
			if sum := p.total(); sum.Bytes > max(limit, before.Bytes) || sum.Records > max(records, before.Records) {
				t.Fatalf("%+v are stored", sum)
			}
		}
		// moving is true from a move until all shards have read the ledger again. A share records only how many groups it
		// covers. If one group were in two shares during that time, nobody would notice another group that is in no share.
		moving := true
		for range rapid.IntRange(10, 120).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1, 2, 3:
				_, final := p.put(any("group", groups), Amount{Bytes: rapid.Int64Range(0, 3000).Draw(t, "bytes"),
					Records: rapid.Int64Range(0, 20).Draw(t, "records")})
				_ = final
			case 4, 5, 6:
				p.look(t, any("looks", alive()))
			case 7:
				g := any("deletes", groups)
				p.stored[g] = Amount{p.stored[g].Bytes / 2, p.stored[g].Records / 2}
				before = p.total()
			case 8:
				for _, shard := range rapid.Permutation(alive()).Draw(t, "all") {
					p.look(t, shard)
				}
				p.look(t, alive()...)
				p.look(t, alive()...)
				moving = false
			case 9:
				if moving {
					continue
				}
				moving = true
				if rapid.Bool().Draw(t, "ends") && len(p.sets) > 1 {
					gone := any("gone", alive())
					delete(p.sets, gone)
					p.etcd.gone = append(p.etcd.gone, gone)
					for _, g := range groups {
						if p.leader[g] == gone {
							p.leader[g] = any("next", alive())
						}
					}
					continue
				}
				p.leader[any("moves", groups)] = any("to", alive())
			}
			holds()
		}
		for range 40 {
			p.look(t, alive()...)
		}
		for g := range p.stored { // deletes most of the data, because the groups may have stored more than the quota
			p.stored[g] = Amount{Bytes: p.stored[g].Bytes / 8}
		}
		p.look(t, alive()...)
		before = p.total()
		g := any("last", groups)
		for range 100 {
			left := limit - p.total().Bytes
			if left <= 0 {
				break
			}
			if done, _ := p.put(g, Amount{Bytes: min(left, 500)}); !done {
				p.look(t, alive()...)
			}
			holds()
		}
		if left := limit - p.total().Bytes; left > 0 {
			t.Fatalf("%d bytes are left, and nobody gets them: %s", left, p.etcd.ledgers["a"].Value)
		}
		p.look(t, alive()...)
		p.look(t, alive()...)
		_ = p.clock.pause(context.Background(), time.Minute)
		p.look(t, alive()...)
		p.look(t, p.leader[g])
		if done, final := p.put(g, Amount{Bytes: 1}); done || !final {
			t.Fatalf("at the limit: done %v, final %v: %s", done, final, p.etcd.ledgers["a"].Value)
		}
	})
}

// The metrics show the used, admitted and refused amounts of each quota that exists.
func TestMetricsOfTenants(t *testing.T) {
	p := newPlay(access.Quotas{Records: 5, CallsPerSecond: 2}, 1, "s")
	p.look(t, "s")
	a := p.tenant("s")
	if _, err := a.Store(t.Context(), Amount{Bytes: 10, Records: 2}, false); err != nil {
		t.Fatal(err)
	}
	must.OK(t, a.Begin(context.Background(), 0))
	a.Moved(10)
	exceeded(t, a.Begin(context.Background(), 0), access.CallsPerSecond, true)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(p.sets["s"])
	families, err := registry.Gather()
	must.OK(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"sheaf_tenant_quota_limit records a": 5, "sheaf_tenant_quota_limit callsPerSecond a": 2,
		"sheaf_tenant_quota_used records a": 2, "sheaf_tenant_quota_limit groups a": access.GroupsDefault,
		"sheaf_tenant_quota_used groups a": 1,
		"sheaf_tenant_part a":              1, "sheaf_tenant_calls_total a": 1, "sheaf_tenant_bytes_total a": 10,
		"sheaf_tenant_refused_total records a": 0, "sheaf_tenant_refused_total callsPerSecond a": 1,
		"sheaf_tenant_waited_total records a": 0, "sheaf_tenant_waited_total callsPerSecond a": 0,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, and must be %v", got, want)
	}
}

// BenchmarkNoTenant measures a call in a store without tenants, and in a group without a tenant.
func BenchmarkNoTenant(b *testing.B) {
	for name, tenants := range map[string][]access.Tenant{"none": nil,
		"others": {{Name: "a", Prefix: "a-", Quotas: access.Quotas{Records: 1}}}} {
		b.Run(name, func(b *testing.B) {
			s := New(Config{})
			s.Take(tenants)
			of := s.Group("b-1")
			b.ReportAllocs()
			for b.Loop() {
				if of.Tenant() != nil {
					b.Fatal("it has a tenant")
				}
			}
		})
	}
}

// BenchmarkCall measures a call in a group with quotas.
func BenchmarkCall(b *testing.B) {
	s := New(Config{})
	s.Take([]access.Tenant{{Name: "a", Prefix: "a-", Quotas: access.Quotas{CallsPerSecond: 1e12, BytesPerSecond: 1e12,
		CallsAtOnce: 1000}}})
	of := s.Group("a-1")
	b.ReportAllocs()
	for b.Loop() {
		t := of.Tenant()
		must.OK(b, t.Begin(context.Background(), 0))
		t.Moved(1000)
		t.End()
	}
}
