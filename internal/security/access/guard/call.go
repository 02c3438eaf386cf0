package guard

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/security/access"
)

// call is one call in progress. It implements access.Call.
type call struct {
	guard  *Guard
	caller access.Caller
	via    string // name of the gateway that forwarded the call; empty if none did
	from   string // address of the other end of the connection
	rule   access.Rule
	method string

	signer *access.Signer // nil if values for the caller are not signed

	lasts   bool // whether Guard.open contains this call
	end     func(error)
	ended   atomic.Pointer[error]
	expires *time.Timer

	mu      sync.Mutex
	asked   []ask // arguments of those calls to may that were allowed; recorded only if lasts is set
	denied  ask   // last refusal that was written to the audit log
	refusal bool
	// wrote is the write to record in the audit log when the call ends. Its verb is NoVerb if the call writes nothing.
	wrote access.Written
}

// ask holds the arguments of a call to the method May.
type ask struct {
	verb  access.Verb
	group string
}

// ends reports whether the caller's token has expired.
func (c *call) ends(now time.Time) bool {
	return !c.caller.Expires.IsZero() && now.After(c.caller.Expires)
}

func from(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

func (c *call) Caller() *access.Caller { return &c.caller }

func (c *call) Table() int64 { return c.guard.table().Version() }

func (c *call) Can(verb access.Verb, group string) error {
	return c.guard.table().Decide(&c.caller, verb, group)
}

func (c *call) Sees(group string) bool { return c.guard.table().Sees(&c.caller, group) }

func (c *call) Signs() bool { return c.signer != nil }

func (c *call) Sign(value []byte, lasts time.Duration) []byte {
	if c.signer == nil {
		return value
	}
	return c.signer.Sign(&c.caller, value, c.endOf(lasts))
}

func (c *call) SignShared(value []byte, lasts time.Duration) []byte {
	if c.signer == nil {
		return value
	}
	return c.signer.SignShared(value, c.endOf(lasts))
}

// endOf returns the time until which a signed value is valid; the zero time means forever.
func (c *call) endOf(lasts time.Duration) time.Time {
	if lasts <= 0 {
		return time.Time{}
	}
	return c.guard.cfg.Now().Add(lasts)
}

func (c *call) Open(sealed []byte) ([]byte, error) {
	if c.signer == nil {
		return sealed, nil
	}
	return c.signer.OpenShared(&c.caller, sealed, c.guard.cfg.Now())
}

func (c *call) May(verb access.Verb, group string) error { return c.may(verb, group, nil) }

func (c *call) MayRecord(verb access.Verb, group string, id int64) error {
	if c.guard.cfg.Audit == nil {
		return c.may(verb, group, nil)
	}
	if err := c.may(verb, group, &id); err != nil {
		return err
	}
	if c.guard.cfg.Audit.writes() && !c.rule.Apart && (verb == access.Put || verb == access.Delete) {
		c.mu.Lock()
		c.wrote = access.Written{Verb: verb, Group: group, ID: id}
		c.mu.Unlock()
	}
	return nil
}

// may returns an error unless the caller may use a verb in a group. If the decision is about a record, id is its id.
// Otherwise id is nil.
func (c *call) may(verb access.Verb, group string, id *int64) error {
	first, err := c.guard.table().Use(&c.caller, verb, group)
	if err != nil {
		c.refused(verb, group, id, err)
		return err
	}
	if len(first) > 0 {
		c.note(Event{Kind: "first-use", Verb: verb.String(), Group: group, Grants: first})
	}
	if c.lasts && !c.rule.Apart {
		c.mu.Lock()
		if one := (ask{verb, group}); !slices.Contains(c.asked, one) {
			c.asked = append(c.asked, one)
		}
		c.mu.Unlock()
		c.again() // the table may have changed before this permission was recorded
	}
	return nil
}

// inTable is like May, but allows everything if the store has no table of grants. In that case the rule of the method
// is the only requirement, and it was checked before.
func (c *call) inTable(verb access.Verb, group string) error {
	if c.guard.table() == nil {
		return nil
	}
	return c.May(verb, group)
}

func (c *call) Wrote(n int, what func(i int) access.Written) {
	if !c.guard.cfg.Audit.writes() {
		return
	}
	// Writes to the same group that have the same outcome share one line of the audit log. If each write had a line of its
	// own, they would fill the queue and displace other lines.
	type alike struct {
		verb  access.Verb
		group string
		code  codes.Code
	}
	lines := map[alike]*Event{}
	var order []*Event
	for i := range n {
		w := what(i)
		if w.Verb == access.NoVerb || w.Code == codes.PermissionDenied || w.Code == codes.Unauthenticated {
			continue
		}
		line := lines[alike{w.Verb, w.Group, w.Code}]
		if line == nil {
			line = &Event{Kind: "write", Verb: w.Verb.String(), Group: w.Group, Code: w.Code.String()}
			lines[alike{w.Verb, w.Group, w.Code}] = line
			order = append(order, line)
		}
		if line.Records++; len(line.IDs) < idsShown {
			line.IDs = append(line.IDs, strconv.FormatInt(w.ID, 10))
		}
	}
	for _, line := range order {
		c.note(*line)
	}
}

func (c *call) Viewed(what access.Viewed) {
	if what.Code == codes.PermissionDenied || what.Code == codes.Unauthenticated {
		return // the refusal has a line already
	}
	c.note(Event{Kind: "view", Verb: access.Scan.String(), Action: what.Action, View: what.View,
		Groups: what.Groups[:min(len(what.Groups), idsShown)], Code: what.Code.String()})
}

// refused records a refusal in the audit log. If the refusal is about a record, id is its id. Otherwise id is nil. If
// the call's previous refusal was the same, nothing is written.
func (c *call) refused(verb access.Verb, group string, id *int64, err error) {
	code := status.Code(err)
	if code != codes.PermissionDenied && code != codes.Unauthenticated {
		return // nothing was decided, for example because the table of grants is not known yet
	}
	c.guard.counts.refused.WithLabelValues(code.String()).Inc()
	c.mu.Lock()
	// A batch checks the permission for each of its records, so the same refusal may occur many times.
	again := c.refusal && c.denied == ask{verb, group}
	c.refusal, c.denied = true, ask{verb, group}
	c.mu.Unlock()
	if again {
		return
	}
	e := Event{Kind: "refusal", Verb: verb.String(), Group: group, Code: code.String(), Reason: status.Convert(err).
		Message()}
	if id != nil {
		e.IDs = []string{strconv.FormatInt(*id, 10)}
	}
	c.note(e)
}

// note sends an event to the audit log.
func (c *call) note(e Event) {
	if c.guard.cfg.Audit == nil {
		return
	}
	e.Caller, e.Via, e.From, e.Method, e.Table = c.caller.String(), c.via, c.from, c.method, c.guard.table().Version()
	c.guard.cfg.Audit.note(e)
}

// finished records the outcome of a write or an administrative call in the audit log. It leaves out calls that the
// store's processes make all the time.
func (c *call) finished(group, shard string, err error) {
	c.mu.Lock()
	wrote := c.wrote
	c.mu.Unlock()
	if wrote.Verb != access.NoVerb {
		c.note(Event{Kind: "write", Verb: wrote.Verb.String(), Group: wrote.Group,
			IDs: []string{strconv.FormatInt(wrote.ID, 10)}, Records: 1, Code: status.Code(err).String()})
	}
	admin := c.rule.Verb == access.AdminWrite || c.rule.Verb == access.AdminRead && !c.caller.IsProcess()
	if admin {
		c.note(Event{Kind: "admin", Verb: c.rule.Verb.String(), Group: group, Shard: shard,
			Code: status.Code(err).String()})
	}
}

// last registers the call as one that may take a long time. Until the caller calls the returned function over, the
// guard checks the call's permissions again whenever the table changes. If a permission no longer exists, or if the
// caller's token expires, the guard calls the function end with the error. That function must abort the call.
func (c *call) last(end func(error)) (over func()) {
	c.end, c.lasts = end, true
	g := c.guard
	g.mu.Lock()
	g.open[c] = struct{}{}
	g.mu.Unlock()
	if at := c.caller.Expires; !at.IsZero() {
		c.expires = time.AfterFunc(at.Sub(g.cfg.Now()), func() {
			c.revoke(status.Error(codes.Unauthenticated, "the token that says who calls has ended: call again with a new one"))
		})
	}
	c.again()
	return func() {
		g.mu.Lock()
		delete(g.open, c)
		g.mu.Unlock()
		if c.expires != nil {
			c.expires.Stop()
		}
	}
}

// again checks the call's permissions against the current table, and aborts the call if one of them no longer exists.
func (c *call) again() {
	table := c.guard.table()
	err := table.Admit(&c.caller, c.method)
	if err == nil && c.rule.Where == access.InAll && table != nil {
		err = table.Decide(&c.caller, c.rule.Verb, "")
	}
	c.mu.Lock()
	asked := c.asked
	c.mu.Unlock()
	for _, a := range asked {
		if err == nil {
			err = table.Decide(&c.caller, a.verb, a.group)
		}
	}
	if err != nil {
		c.refused(c.rule.Verb, "", nil, err)
		c.revoke(err)
	}
}

func (c *call) revoke(err error) {
	if c.ended.CompareAndSwap(nil, &err) {
		c.end(err)
	}
}

// revoked returns the error with which the call was aborted, or nil if the call was not aborted.
func (c *call) revoked() error {
	if err := c.ended.Load(); err != nil {
		return *err
	}
	return nil
}
