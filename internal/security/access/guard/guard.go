// Package guard asks package access before each call of a gRPC server: it finds out who calls, follows the table of
// grants, and looks at open streams again when that changes. See docs/adr/0041-grants-decide-at-gateways-and-shards.md.
package guard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/identity"
)

// Config of a Guard. Store, Who, Follow and Key are required.
type Config struct {
	// Store that callers must be of.
	Store identity.Store
	// Who tells whose certificate the connection of a call has shown.
	Who func(ctx context.Context) (identity.Identity, bool)
	// Open tells that callers cannot be known on the connection of a call, which speaks plaintext where that is
	// allowed: nothing is decided about such a call. nil: there are none.
	Open func(ctx context.Context) bool
	// Follow gives the table of grants as it is, and again after each change, until ctx ends; nil bytes: there is none.
	Follow func(ctx context.Context, take func(table []byte))
	// Required tells whether callers have to wait where the store has no table; nil: then the store is open to all its
	// callers.
	Required func() bool
	// Key gives the key of the store's seals, and makes it where there is none.
	Key func(ctx context.Context) ([]byte, error)
	// Forwarded: gateways of the store say in a header for whom they call.
	Forwarded bool
	// Audit is told of what is refused and done; nil: nobody is.
	Audit *Audit
	// Logger; nil: nothing is said.
	Logger *slog.Logger
	// Now; nil: the system's clock.
	Now func() time.Time
}

// Guard decides about the calls of one server. Safe for concurrent use. Close must follow.
type Guard struct {
	cfg     Config
	stop    context.CancelFunc
	done    chan struct{}
	current atomic.Pointer[decided]
	first   chan struct{} // closed when current is there
	sealer  atomic.Pointer[access.Sealer]
	sealed  chan struct{} // closed when sealer is there

	forwarded callers
	counts    counts

	mu      sync.Mutex
	open    map[*call]struct{} // that last
	unknown map[string]int64   // tokens by unknown keys, by issuer
}

// decided is what is known of the table.
type decided struct {
	table *access.Compiled // nil: there is none
	text  []byte           // that it was made from
}

// New follows the table from now on.
func New(cfg Config) *Guard {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Required == nil {
		cfg.Required = func() bool { return false }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	g := &Guard{cfg: cfg, done: make(chan struct{}), first: make(chan struct{}), sealed: make(chan struct{}),
		open: map[*call]struct{}{}}
	g.counts = newCounts(g)
	var ctx context.Context
	ctx, g.stop = context.WithCancel(context.Background())
	go func() {
		defer close(g.done)
		var both sync.WaitGroup
		both.Go(func() { g.followKey(ctx) })
		cfg.Follow(ctx, g.take)
		both.Wait()
	}()
	return g
}

// How often the key of seals is read: until it is there, and then, as an etcd that was lost has another one.
const (
	keyRetry = time.Second
	keyAgain = time.Minute
)

// followKey reads the key of seals until ctx ends.
func (g *Guard) followKey(ctx context.Context) {
	for {
		pause := keyRetry
		if next, err := g.readKey(ctx); err == nil {
			if pause = keyAgain; g.sealer.Swap(next) == nil {
				close(g.sealed)
			}
		} else if ctx.Err() == nil && g.sealer.Load() == nil {
			g.cfg.Logger.Warn("the key of seals cannot be read: scans and watches wait", "error", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (g *Guard) readKey(ctx context.Context) (*access.Sealer, error) {
	ctx, cancel := context.WithTimeout(ctx, tablePatience)
	defer cancel()
	key, err := g.cfg.Key(ctx)
	if err != nil {
		return nil, err
	}
	return access.NewSealer(key)
}

// waitKey returns when the key of seals is known.
func (g *Guard) waitKey(ctx context.Context) (*access.Sealer, error) {
	if s := g.sealer.Load(); s != nil {
		return s, nil
	}
	timer := time.NewTimer(tablePatience)
	defer timer.Stop()
	select {
	case <-g.sealed:
		return g.sealer.Load(), nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil, status.Error(codes.Unavailable,
		"the key of the store's cursors is not known here yet: etcd does not answer")
}

// Close ends the watch of the table. The last one goes on to decide. It may be called again.
func (g *Guard) Close() {
	g.stop()
	<-g.done
}

// Collectors of what a Guard does, for a registry.
func (g *Guard) Collectors() []prometheus.Collector { return g.counts.all() }

// tokens tells whether callers may be known by a token now, and need no certificate.
func (g *Guard) tokens() bool { return g.table().HasIssuers() }

// Version is that of the table that decides now; 0: none is known, or the store has none.
func (g *Guard) Version() int64 { return g.table().Version() }

// UnknownKeys counts the tokens by keys that are not in the table, by issuer: those of tables there were, of which
// there are few.
func (g *Guard) UnknownKeys() map[string]int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.unknown)
}

// noteUnknown counts a token by a key that is not in the table.
func (g *Guard) noteUnknown(err error) {
	var unknown *access.UnknownKeyError
	if !errors.As(err, &unknown) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.unknown == nil {
		g.unknown = map[string]int64{}
	}
	g.unknown[unknown.Issuer]++
}

// table decides now; nil: none is known, or the store has none.
func (g *Guard) table() *access.Compiled {
	if now := g.current.Load(); now != nil {
		return now.table
	}
	return nil
}

// take takes the table of etcd. One that cannot be used, or is gone, leaves the last one in use: a store is not opened
// to everybody by a mistake.
func (g *Guard) take(text []byte) {
	if now := g.current.Load(); now != nil && text != nil && bytes.Equal(text, now.text) {
		return // it is in use, and what was first used by it was told
	}
	last := g.table()
	next := &decided{text: text}
	if text == nil && last != nil {
		g.counts.errors.Inc()
		g.cfg.Logger.Error(
			"etcd has no table of grants any more: the last one stays in use until one is set, or this process is started anew",
			"version", last.Version())
		return
	}
	if text != nil {
		table, err := access.ParseTable(text)
		if err == nil {
			next.table, err = access.Compile(table)
		}
		if err != nil {
			g.counts.errors.Inc()
			g.cfg.Logger.Error(
				"the table of grants in etcd cannot be used: the last one stays in use, and callers wait where there was none",
				"version", last.Version(), "error", err)
			return
		}
	}
	g.counts.version.Set(float64(next.table.Version()))
	if before := g.current.Swap(next); before == nil {
		close(g.first)
	}
	if next.table != nil {
		g.cfg.Logger.Info("a table of grants is in use", "version", next.table.Version())
	}
	g.look()
}

// look decides again about the calls that last.
func (g *Guard) look() {
	g.mu.Lock()
	open := make([]*call, 0, len(g.open))
	for c := range g.open {
		open = append(open, c)
	}
	g.mu.Unlock()
	for _, c := range open {
		c.again()
	}
}

// tablePatience is how long a call waits for the first table. Tests make it longer.
var tablePatience = 5 * time.Second

// wait returns when it is known what decides.
func (g *Guard) wait(ctx context.Context) (*access.Compiled, error) {
	if g.current.Load() == nil {
		timer := time.NewTimer(tablePatience)
		defer timer.Stop()
		select {
		case <-g.first:
		case <-timer.C:
			return nil, errNotKnown
		case <-ctx.Done():
			return nil, errNotKnown
		}
	}
	table := g.table()
	if table == nil && g.cfg.Required() {
		return nil, errNoTable
	}
	return table, nil
}

// Answers to callers who have to wait.
var (
	errNotKnown = status.Error(codes.Unavailable,
		"the grants of the store are not known here yet: etcd does not answer, or holds a table that cannot be used")
	errNoTable = status.Error(codes.Unavailable, "the store has no table of grants yet, and lets nobody in without one: "+
		"the operator writes it, or sheaf auth table set does")
)

// Headers of calls.
const (
	tokenHeader = "authorization"
	// callerHeader is where a gateway tells a shard for whom it calls.
	callerHeader = "sheaf-caller"
)

// enter finds out who calls, and decides what can be decided before the request is read. Nil: anyone may make the call,
// or nobody can be known.
func (g *Guard) enter(ctx context.Context, method string) (*call, error) {
	rule := access.RuleOf(method)
	if rule.For == access.Anyone || rule.For != access.Nobody && g.cfg.Open != nil && g.cfg.Open(ctx) {
		return nil, nil
	}
	c := &call{guard: g, rule: rule, method: method, from: from(ctx)}
	err := g.identify(ctx, c)
	var table *access.Compiled
	if err == nil {
		if table = g.table(); !c.caller.MayAll() {
			table, err = g.wait(ctx)
		}
	}
	if err == nil {
		err = table.Admit(&c.caller, method)
	}
	if err == nil && c.via == "" && !c.caller.IsProcess() && rule.HandsBack {
		c.sealer, err = g.waitKey(ctx)
	}
	if err == nil && rule.Where == access.InAll {
		err = c.inTable(rule.Verb, "")
	}
	if err != nil {
		c.refused(rule.Verb, "", nil, err)
		return nil, err
	}
	return c, nil
}

// identify finds out who calls.
func (g *Guard) identify(ctx context.Context, c *call) error {
	id, certified := g.cfg.Who(ctx)
	tokens := metadata.ValueFromIncomingContext(ctx, tokenHeader)
	switch {
	case certified && len(tokens) > 0:
		return status.Error(codes.Unauthenticated, "a certificate and a token say who calls: show one of them")
	case len(tokens) > 1:
		return status.Errorf(codes.Unauthenticated, "%d headers %s say who calls: send one", len(tokens), tokenHeader)
	case len(tokens) == 1:
		return g.byToken(ctx, c, tokens[0])
	case !certified:
		return nil
	}
	caller, err := access.OfStore(g.cfg.Store, id, c.method)
	if err != nil {
		return err
	}
	c.caller = caller
	if !g.cfg.Forwarded || id.Role != identity.Gateway {
		return nil // a header by which others say that they are somebody else is not read
	}
	switch told := metadata.ValueFromIncomingContext(ctx, callerHeader); len(told) {
	case 0:
		return nil // the gateway calls for itself
	case 1:
		c.via = caller.String()
		c.caller, err = g.forwarded.of(told[0])
		return err
	default:
		return status.Errorf(codes.Unauthenticated, "a gateway calls for %d callers at once", len(told))
	}
}

// byToken takes the caller that a token names.
func (g *Guard) byToken(ctx context.Context, c *call, header string) error {
	table, err := g.wait(ctx)
	if err != nil {
		return err
	}
	const scheme = "bearer "
	if len(header) < len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return status.Errorf(codes.Unauthenticated, "the header %s is no Bearer token", tokenHeader)
	}
	if c.caller, err = table.Token(header[len(scheme):], g.cfg.Now()); err != nil {
		g.noteUnknown(err)
		return status.Error(codes.Unauthenticated, err.Error())
	}
	return nil
}

// callersKept bounds the callers that gateways have named.
const callersKept = 4096

// callers are those that gateways have named. Safe for concurrent use.
type callers struct {
	mu   sync.RWMutex
	kept map[string]access.Caller
}

// of gives the caller of a header.
func (k *callers) of(text string) (access.Caller, error) {
	k.mu.RLock()
	c, ok := k.kept[text]
	k.mu.RUnlock()
	if ok {
		return c, nil
	}
	c, err := access.ParseCaller(text)
	if err == nil && c.IsProcess() {
		err = errors.New("a gateway calls for no process of the store")
	}
	if err != nil {
		return access.Caller{}, status.Errorf(codes.Unauthenticated, "the header %s: %v", callerHeader, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil || len(k.kept) >= callersKept {
		k.kept = map[string]access.Caller{}
	}
	k.kept[text] = c
	return c, nil
}
