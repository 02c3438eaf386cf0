package shard

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/placement"
)

// stepHandler is a log handler that notices the steps of moves that shards log.
type stepHandler struct {
	slog.Handler
	tell func(step string)
}

func (h stepHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "a step of a move" {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "step" {
				h.tell(a.Value.String())
			}
			return true
		})
	}
	return h.Handler.Handle(ctx, r)
}

func (h stepHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return stepHandler{h.Handler.WithAttrs(attrs), h.tell}
}

func (h stepHandler) WithGroup(name string) slog.Handler {
	return stepHandler{h.Handler.WithGroup(name), h.tell}
}

// stepWanted is a step for which a test waits. It is identified by its kind and by its number among the steps of that
// kind.
type stepWanted struct {
	kind   string
	number int32
	seen   atomic.Int32
	here   chan struct{}
}

// pools consists of two shards in each of three domains. The first shard of each domain is in one pool, and the
// second is in the other.
type pools struct {
	*cluster
	step   atomic.Pointer[stepWanted]
	shared atomic.Pointer[string] // first group that was found to have two voters in one domain
}

var (
	poolA = []string{"a1", "a2", "a3"}
	// With this order, the first copy of each group moves to a different domain.
	poolC = []string{"c3", "c1", "c2"}
)

func domainOf(shard string) string { return "n" + shard[1:] }

func newPools(t testing.TB) *pools {
	routing := placement.Routing{Mode: placement.Hash, Groups: 6}
	p := &pools{cluster: &cluster{t: t, registry: newRegistry(routing, ""), shards: map[string]*fixture{},
		stopped: map[string]*fixture{}}}
	p.registry.view.Meta.Copies = 3
	p.registry.changed = p.look
	p.aim(poolA...)
	for _, list := range [][]string{poolA, poolC} {
		for _, name := range list {
			p.add(name, func(cfg *Config) {
				cfg.Domain, cfg.Logger = domainOf(name), slog.New(stepHandler{cfg.Logger.Handler(), p.tell})
			})
		}
	}
	p.settled(poolA...)
	return p
}

// look records the first group that has two voters in one domain.
func (p *pools) look(v placement.View) {
	for name, g := range v.Groups {
		seen := map[string]bool{}
		for _, m := range g.Members {
			if m.Role != placement.Voter || m.Shard == "" {
				continue
			}
			if seen[domainOf(m.Shard)] {
				p.shared.CompareAndSwap(nil, &name)
			}
			seen[domainOf(m.Shard)] = true
		}
	}
}

func (p *pools) tell(step string) {
	if w := p.step.Load(); w != nil && step == w.kind && w.seen.Add(1) == w.number {
		close(w.here)
	}
}

// Groups move from one pool to another, across the same three domains. If one of the domains is lost at any step of
// these moves, every group must keep working. That is possible because a group never has two voters in one domain.
func TestADomainIsLostAtEachStepOfAMigration(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		p := newPools(t)
		p.fill(60, 2000)
		steps := []*stepWanted{
			{kind: "AddLearner", number: 1}, {kind: "Replace", number: 1}, {kind: "Replace", number: 6},
			{kind: "TransferLeader", number: 1},
			// The test waits for no further transfer after the second one, because there may be none. A group that has had an
			// election in the meantime does not need a transfer.
			{kind: "Replace", number: 12}, {kind: "TransferLeader", number: 2},
		}
		if testing.Short() {
			steps = steps[:2]
		}
		for n, step := range steps {
			to := [][]string{poolC, poolA}[n%2]
			domain := string('1' + rune(n%3))
			step.here = make(chan struct{})
			p.step.Store(step)
			p.aim(to...)
			p.eventually(step.kind, func() bool {
				select {
				case <-step.here:
					return true
				default:
					return false
				}
			})
			p.step.Store(nil)
			p.kill("a" + domain)
			p.kill("c" + domain)
			lost := time.Now()
			for group := range 6 {
				id := idsOf(p.registry.now().Meta.Routing, group, 1)[0]
				p.put(id, data(id, 100+n))
				p.holds(id, data(id, 100+n))
			}
			t.Logf("step %d of %s, domain %s lost: all groups are read and written %v after that", step.number, step.kind,
				domain, time.Since(lost).Round(time.Millisecond))
			p.restart("a" + domain)
			p.restart("c" + domain)
			p.settled(to...)
			if group := p.shared.Load(); group != nil {
				t.Fatalf("two voters of group %s were in one domain", *group)
			}
		}
	})
}
