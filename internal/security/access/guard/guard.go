// Package guard applies the decisions of package access to each call of a gRPC server. It identifies the caller,
// follows the table of grants, and checks open streams again whenever the table changes. See
// docs/adr/0041-grants-decide-at-gateways-and-shards.md.
package guard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
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

// Config configures a Guard. Store, Who, Follow and Key are required.
type Config struct {
	// Store is the store to which the certificates of callers must belong.
	Store identity.Store
	// Who returns the identity from the certificate with which the caller connected.
	Who func(ctx context.Context) (identity.Identity, bool)
	// Open reports whether a call arrived over plaintext, which the process's certs.Mode may allow. The caller then
	// cannot be identified, and the call's context carries access.Everybody. If Open is nil, no call is plaintext.
	Open func(ctx context.Context) bool
	// Follow calls the function take with the current table of grants, and again after each change, until ctx is done. A
	// nil slice means that there is no table.
	Follow func(ctx context.Context, take func(table []byte))
	// Required reports whether callers who need grants must wait until the store has a table. If Required is nil or
	// returns false, a store without a table is open to all its callers.
	Required func() bool
	// Key returns the store's signing key. If there is none, it creates one.
	Key func(ctx context.Context) ([]byte, error)
	// Forwarded means that the store's gateways name the original caller in a header. A call from a gateway that lacks
	// this header is refused.
	Forwarded bool
	// Audit receives refusals and completed operations. If it is nil, there is no audit log.
	Audit *Audit
	// Logger receives the guard's log messages. If it is nil, they are discarded.
	Logger *slog.Logger
	// Now returns the time. The default is the system's clock.
	Now func() time.Time
}

// Guard decides about the calls of one server. It is safe for concurrent use. Its owner must call Close.
type Guard struct {
	cfg     Config
	stop    context.CancelFunc
	done    chan struct{}
	current atomic.Pointer[decided]
	first   chan struct{} // closed when current is set
	signer  atomic.Pointer[access.Signer]
	sealed  chan struct{} // closed when signer is set

	forwarded access.CallerCache // callers that were named by gateways
	counts    counts

	mu      sync.Mutex
	open    map[*call]struct{} // calls that may stay open for a long time (Rule.Lasting)
	unknown map[string]int64   // number of tokens with a key that was not in the table, by issuer
}

// decided holds the grant table in use.
type decided struct {
	table *access.Compiled // nil if the store has no table
	text  []byte           // JSON from which the table was compiled
}

// New returns a Guard, which follows the table of grants until Close is called.
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
		open: map[*call]struct{}{}, unknown: map[string]int64{}}
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

// The signing key is read repeatedly. The interval is keyRetry until the key is known, and keyAgain afterwards. The
// key has to be read even then, because it changes if etcd is rebuilt.
const (
	keyRetry = time.Second
	keyAgain = time.Minute
)

// followKey reads the signing key repeatedly until ctx is done.
func (g *Guard) followKey(ctx context.Context) {
	for {
		pause := keyRetry
		if next, err := g.readKey(ctx); err == nil {
			if pause = keyAgain; g.signer.Swap(next) == nil {
				close(g.sealed)
			}
		} else if ctx.Err() == nil && g.signer.Load() == nil {
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

func (g *Guard) readKey(ctx context.Context) (*access.Signer, error) {
	ctx, cancel := context.WithTimeout(ctx, tablePatience)
	defer cancel()
	key, err := g.cfg.Key(ctx)
	if err != nil {
		return nil, err
	}
	return access.NewSigner(key)
}

// waitKey waits until the signing key is known, and then returns a signer that uses it.
func (g *Guard) waitKey(ctx context.Context) (*access.Signer, error) {
	if s := g.signer.Load(); s != nil {
		return s, nil
	}
	if await(ctx, g.sealed) {
		return g.signer.Load(), nil
	}
	return nil, status.Error(codes.Unavailable,
		"the key of the store's cursors is not known here yet: etcd does not answer")
}

// Close stops following the table of grants. The last table remains in use. Calling Close again has no effect.
func (g *Guard) Close() {
	g.stop()
	<-g.done
}

// Collectors returns the metrics of the Guard, to be registered.
func (g *Guard) Collectors() []prometheus.Collector {
	return []prometheus.Collector{g.counts.errors, g.counts.refused, g.counts.version, g.counts.streams}
}

// Version returns the version of the table in use, or 0 if the table is not known yet or the store has none.
func (g *Guard) Version() int64 { return g.table().Version() }

// UnknownKeys returns the number of tokens whose key was not in the table, by issuer. It still includes issuers that
// the current table no longer has.
func (g *Guard) UnknownKeys() map[string]int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.unknown)
}

// noteUnknown counts a token whose key is not in the table.
func (g *Guard) noteUnknown(err error) {
	var unknown *access.UnknownKeyError
	if !errors.As(err, &unknown) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unknown[unknown.Issuer]++
}

// table returns the table in use, or nil if the table is not known yet or the store has none.
func (g *Guard) table() *access.Compiled {
	if now := g.current.Load(); now != nil {
		return now.table
	}
	return nil
}

// take starts to use a table from etcd. If the new table is invalid, or if the table was deleted, the last table
// remains in use. Thus a mistake does not open the store to everybody.
func (g *Guard) take(text []byte) {
	if now := g.current.Load(); now != nil && text != nil && bytes.Equal(text, now.text) {
		// This table is already in use. It is not installed again, because first uses of its grants would then be reported
		// again.
		return
	}
	last := g.table()
	next := &decided{text: text}
	if text == nil && last != nil {
		g.counts.errors.Inc()
		g.cfg.Logger.Error(
			"etcd has no table of grants any more: the last one stays in use until one is set, or this process is started again",
			"version", last.Version())
		return
	}
	if text != nil {
		var err error
		if next.table, err = access.CompileText(text); err != nil {
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

// look makes the decisions about all calls in Guard.open again.
func (g *Guard) look() {
	g.mu.Lock()
	open := slices.Collect(maps.Keys(g.open))
	g.mu.Unlock()
	for _, c := range open {
		c.again()
	}
}

// tablePatience limits how long a call waits for the first table. It is a variable, because tests need a longer time.
var tablePatience = 5 * time.Second

// await waits until a channel is closed. It returns false if that has not happened when tablePatience has elapsed or
// ctx is done.
func await(ctx context.Context, closed <-chan struct{}) bool {
	ctx, cancel := context.WithTimeout(ctx, tablePatience)
	defer cancel()
	select {
	case <-closed:
		return true
	case <-ctx.Done():
		return false
	}
}

// wait returns the table in use. If the table is not known yet and waits is true, wait waits for the table. If waits
// is false, it returns errUndecided immediately.
func (g *Guard) wait(ctx context.Context, waits bool) (*access.Compiled, error) {
	if g.current.Load() == nil {
		if !waits {
			return nil, errUndecided
		}
		if !await(ctx, g.first) {
			return nil, errNotKnown
		}
	}
	table := g.table()
	if table == nil && g.cfg.Required() {
		return nil, errNoTable
	}
	return table, nil
}

// These errors are returned to callers while the guard cannot decide about their calls yet.
var (
	errNotKnown = status.Error(codes.Unavailable,
		"the grants of the store are not known here yet: etcd does not answer, or holds a table that cannot be used")
	errNoTable = status.Error(codes.Unavailable, "the store has no table of grants yet, and lets nobody in without one: "+
		"the operator writes it, or sheaf auth table set does")
)

// errUndecided means that the table is needed but not known yet, and that the decision must not wait for it.
var errUndecided = errors.New("the table of grants is not known yet")

// These are the headers of calls.
const (
	tokenHeader = "authorization"
	// callerHeader is the header in which a gateway tells a shard who the original caller is.
	callerHeader = "sheaf-caller"
	// unnamedHeader is used instead of callerHeader if the gateway has no caller to name. Its value is "process" if the
	// gateway was called by a process of the store, and "everybody" if it was called over plaintext. If a call has
	// neither of the headers, the gateway has forgotten to pass its caller on.
	unnamedHeader    = "sheaf-unnamed"
	unnamedProcess   = "process"
	unnamedEverybody = "everybody"
)

// enter identifies the caller, and makes the part of the decision that does not depend on the request. It returns a
// nil call if nothing had to be decided, because anyone may make the call or because the connection is plaintext.
//
// enter runs twice for each call. The first time, waits is false, and only the headers have arrived. If the caller is
// refused at this point, its message takes up no memory. The second time, waits is true, and the message has arrived.
// The identity of the caller is taken from the first run, but the decision is made again, because the table may have
// changed in the meantime.
func (g *Guard) enter(ctx context.Context, method string, waits bool) (*call, error) {
	rule := access.RuleOf(method)
	if rule.For == access.Anyone || rule.For != access.Nobody && g.cfg.Open != nil && g.cfg.Open(ctx) {
		return nil, nil
	}
	c, _ := ctx.Value(enteredKey{}).(*call)
	var err error
	if c == nil || c.guard != g || c.ends(g.cfg.Now()) {
		c = &call{guard: g, rule: rule, method: method, from: from(ctx)}
		err = g.identify(ctx, c, waits)
	}
	var table *access.Compiled
	if err == nil {
		if table = g.table(); c.caller.NeedsGrants() {
			table, err = g.wait(ctx, waits)
		}
	}
	if err == nil {
		err = table.Admit(&c.caller, method)
	}
	if err == nil && rule.Where == access.InAll {
		err = c.inTable(rule.Verb, "")
	}
	if err == nil && waits && c.via == "" && !c.caller.IsProcess() && rule.ReturnsSigned {
		c.signer, err = g.waitKey(ctx)
	}
	if err != nil {
		c.refused(rule.Verb, "", nil, err)
		return nil, err
	}
	return c, nil
}

// enteredKey is the context key under which Guard.headers stores its call object, so that the second run of enter
// finds it.
type enteredKey struct{}

// identify stores the identity of the caller in c.
func (g *Guard) identify(ctx context.Context, c *call, waits bool) error {
	id, certified := g.cfg.Who(ctx)
	tokens := metadata.ValueFromIncomingContext(ctx, tokenHeader)
	switch {
	case certified && len(tokens) > 0:
		return status.Error(codes.Unauthenticated, "a certificate and a token say who calls: show one of them")
	case len(tokens) > 1:
		return status.Errorf(codes.Unauthenticated, "%d headers %s say who calls: send one", len(tokens), tokenHeader)
	case len(tokens) == 1:
		return g.byToken(ctx, c, tokens[0], waits)
	case !certified:
		return nil
	}
	caller, err := access.OfStore(g.cfg.Store, id, c.method)
	if err != nil {
		return err
	}
	c.caller = caller
	if !g.cfg.Forwarded || id.Role != identity.Gateway {
		return nil // Only gateways may name another caller. If any other process sends the header, it is ignored.
	}
	told := metadata.ValueFromIncomingContext(ctx, callerHeader)
	unnamed := metadata.ValueFromIncomingContext(ctx, unnamedHeader)
	switch {
	case len(told)+len(unnamed) > 1:
		return status.Errorf(codes.Unauthenticated, "a gateway calls for %d callers at once", len(told)+len(unnamed))
	case len(told) == 1:
		c.via = caller.String()
		c.caller, err = g.named(told[0])
		return err
	case len(unnamed) == 1 && (unnamed[0] == unnamedProcess || unnamed[0] == unnamedEverybody):
		return nil // the call counts as the gateway's own call
	}
	c.caller = access.Caller{}
	return status.Errorf(codes.Unauthenticated, "a gateway does not say in the header %s or %s for whom it calls: "+
		"if it is of an older version, upgrade gateways before shards", callerHeader, unnamedHeader)
}

// byToken verifies the caller's token, and stores the identity of the caller in c.
func (g *Guard) byToken(ctx context.Context, c *call, header string, waits bool) error {
	table, err := g.wait(ctx, waits)
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

// named parses the header in which a gateway names the original caller.
func (g *Guard) named(text string) (access.Caller, error) {
	if c, ok := g.forwarded.Get(text); ok {
		return c, nil
	}
	c, err := access.ParseCaller(text)
	if err == nil && c.IsProcess() {
		err = errors.New("a gateway calls for no process of the store")
	}
	if err != nil {
		return access.Caller{}, status.Errorf(codes.Unauthenticated, "the header %s: %v", callerHeader, err)
	}
	g.forwarded.Put(text, c)
	return c, nil
}

// counts holds the counters of a Guard.
type counts struct {
	errors  prometheus.Counter
	refused *prometheus.CounterVec
	version prometheus.Gauge
	streams prometheus.GaugeFunc
}

func newCounts(g *Guard) counts {
	return counts{
		errors: prometheus.NewCounter(prometheus.CounterOpts{Name: "sheaf_access_table_errors_total",
			Help: "Tables of grants that were found in etcd and cannot be used, or were gone; the one before stays in use."}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sheaf_access_refused_total",
			Help: "Calls, or records of a batch, that were refused, by code: Unauthenticated, PermissionDenied."},
			[]string{"code"}),
		version: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sheaf_access_table_version",
			Help: "Version of the table of grants in use; 0: the store has none, or it is not known yet."}),
		streams: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sheaf_access_open_streams",
			Help: "Open streams that are looked at again when the table of grants changes."}, func() float64 {
			g.mu.Lock()
			defer g.mu.Unlock()
			return float64(len(g.open))
		}),
	}
}
