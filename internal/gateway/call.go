package gateway

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/placement"
)

const (
	// These constants bound the pauses between attempts. A newer view ends a pause immediately.
	pauseFirst = 5 * time.Millisecond
	pauseMax   = 250 * time.Millisecond
	// reserveMax bounds the time before the deadline that is reserved for sending the response back. If the caller's own
	// timer expired first, the caller would not learn the reason.
	reserveMax    = 250 * time.Millisecond
	createTimeout = 10 * time.Second
)

// resolve finds the route of a key in the table. The argument creates is true if the call may create a group, which
// requires Named routing. A nil route means that the caller must wait for a newer table.
func (g *Gateway) resolve(ctx context.Context, t *table, k *key, creates bool) (*route, error) {
	if r := t.route(k); r != nil || t.hash != nil {
		return r, nil
	}
	if len(k.group) == 0 {
		return nil, invalid("key.group", "required in Named routing")
	}
	name := string(k.group)
	if err := placement.ValidateGroupName(name); err != nil {
		return nil, invalid("key.group", "%v", err)
	}
	if t.view.Meta.Listing() {
		return t.unlisted(name), nil
	}
	return nil, g.lookUp(ctx, t, name, creates)
}

// lookUp asks etcd for a group that is missing from the table, because another gateway may have created the group
// after the table was built. lookUp returns nil if the group exists, or if creates is set and lookUp has created it.
// A newer table will then contain the group.
func (g *Gateway) lookUp(ctx context.Context, t *table, name string, creates bool) error {
	_, err, _ := g.creating.Do(name, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
		defer cancel()
		group, err := g.cfg.Store.Group(ctx, name)
		if errors.Is(err, placement.ErrNoGroup) && creates {
			group, _, err = g.create(ctx, t, name, true)
		}
		return group, err
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, placement.ErrNoGroup) && creates:
		return nil // this call shared the lookup of a read, which creates nothing; the next attempt creates the group
	case errors.Is(err, placement.ErrNoGroup):
		return fail(codes.NotFound, reason.GroupNotFound, "group %q does not exist", name)
	default:
		return createError(name, err, false)
	}
}

// tableWith returns a table that contains the group of this name. If etcd has the group and the table does not,
// tableWith waits for a newer table.
func (g *Gateway) tableWith(ctx context.Context, group string) (*table, error) {
	t, err := g.router.wait(ctx)
	if err != nil || t.named[group] != nil {
		return t, err
	}
	if placement.ValidateGroupName(group) != nil {
		return nil, fail(codes.NotFound, reason.GroupNotFound, "group %.40q does not exist", group)
	}
	if t.view.Meta.Listing() {
		return nil, t.unlisted(group).noShardError()
	}
	if err := g.lookUp(ctx, t, group, false); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for t.named[group] == nil {
		select {
		case <-t.changed:
			t = g.router.table.Load()
		case <-g.stopping:
			return nil, fail(codes.Unavailable, reason.Stopping, "the gateway is stopping")
		case <-ctx.Done():
			return nil, fail(codes.Unavailable, reason.NoLeader, "group %q is in etcd, but not known here yet", group)
		}
	}
	return t, nil
}

// attempt is a function that makes one attempt to call a shard. The result sent is true if the request may have left
// this process.
type attempt func(ctx context.Context, s place) (sent bool, err error)

// repeated holds the state of a call that is retried until it has a final result.
type repeated struct {
	routing.Attempts
	g      *Gateway
	failed failures
}

func (g *Gateway) repeated(effect routing.Effect) repeated {
	return repeated{g: g, Attempts: routing.Attempts{Pace: &g.pace, Effect: effect}}
}

// route tries the call at the leader of the key's group until an attempt has a final result or the deadline is near.
func (c *repeated) route(ctx context.Context, k *key, creates bool, do attempt) error {
	t, err := c.g.router.wait(ctx)
	if err != nil {
		return c.end(err)
	}
	return c.repeat(ctx, t, do, func(t *table) (*route, error) { return c.g.resolve(ctx, t, k, creates) })
}

// named is like route, but for a group that is identified by its name and must exist.
func (c *repeated) named(ctx context.Context, group string, do attempt) error {
	t, err := c.g.tableWith(ctx, group)
	if err != nil {
		return err
	}
	return c.repeat(ctx, t, do, func(t *table) (*route, error) {
		if r := t.named[group]; r != nil {
			return r, nil
		}
		return nil, fail(codes.NotFound, reason.GroupNotFound, "group %q does not exist", group)
	})
}

// repeat makes attempts until the call is done. The first attempt uses the table t, and each later attempt uses the
// newest table. The function find looks up the call's route in a table. If find returns an error, the call fails with
// that error.
func (c *repeated) repeat(ctx context.Context, t *table, do attempt, find func(*table) (*route, error)) error {
	for {
		r, err := find(t)
		if err != nil {
			return c.end(err)
		}
		if done, err := c.try(ctx, t, r, do); done {
			return err
		}
		t = c.g.router.table.Load()
	}
}

// try makes one attempt to call a group's leader. If the call must be retried, try waits until it is time for the next
// attempt. If done is true, err is the call's result. The argument r may be nil.
func (c *repeated) try(ctx context.Context, t *table, r *route, do attempt) (done bool, err error) {
	f := failedAttempt{shard: c.failed.next(r), route: r, table: t}
	if f.shard == nil {
		f.err = r.noShardError()
	} else if f.sent, f.err = do(ctx, r.place(f.shard)); f.err == nil {
		return true, nil
	}
	if stop, ok := errors.AsType[finalError](f.err); ok {
		return true, c.end(stop.error)
	}
	f.verdict = c.failed.judge(r, f.shard, status.Convert(f.err), f.sent)
	return c.goOn(ctx, &f)
}

// failedAttempt is an attempt that failed, with the verdict on its error.
type failedAttempt struct {
	err     error
	sent    bool
	verdict routing.Verdict // the result of failures.judge
	shard   *shard          // nil if no leader was known
	route   *route
	table   *table
}

// goOn decides what to do after a failed attempt. If the call must be retried, goOn waits until it is time for the
// next attempt. If done is true, err is the call's result.
func (c *repeated) goOn(ctx context.Context, f *failedAttempt) (done bool, err error) {
	answer := c.Report(ofEveryCopy(f.err, f.verdict), f.verdict, f.sent)
	if f.shard != nil && f.verdict.Fate != routing.Final {
		if f.verdict.Reason != reason.ViewExpired { // the leader remains the best shard for other calls
			f.route.learn(f.shard, f.verdict)
		}
		answer = unreachable(f.err, f.shard.name)
	}
	if !c.Failed(answer, f.verdict, f.sent) {
		return true, c.end(answer)
	}
	if !c.pause(ctx, f.table.changed, f.verdict) {
		return true, c.end(answer)
	}
	return false, nil
}

// noShardError returns the error for a call to a group for which no shard is known. The receiver r may be nil.
func (r *route) noShardError() error {
	if r != nil && r.waits != "" {
		return restoring("group %q %s", r.group, r.waits)
	}
	if r != nil && r.unknown != "" {
		return fail(codes.Unavailable, reason.NoLeader, "group %q: %s", r.group, r.unknown)
	}
	return fail(codes.Unavailable, reason.NoLeader, "no shard owns the group yet, or its shard is not registered")
}

// end returns the error to the caller when no attempt follows.
func (c *repeated) end(err error) error { return told(err, &c.Effect) }

// pause waits until it is time for the next attempt. It returns false if that time is after the deadline.
func (c *repeated) pause(ctx context.Context, changed <-chan struct{}, v routing.Verdict) bool {
	c.g.metrics.retries.WithLabelValues(v.Reason).Inc()
	return c.Pause(ctx, v.Wait, changed, c.g.stopping)
}

// admit counts a call and its bytes, or returns an error if they exceed a limit. If it succeeds, the caller must call
// release afterwards.
func (g *Gateway) admit(bytes int64) error {
	calls, held := g.calls.Add(1), g.bytes.Add(bytes)
	if calls > g.cfg.callsMax || held > g.cfg.Limits.BytesInFlightMax {
		g.release(bytes)
		return overloaded("the gateway works on %d calls with %d bytes: send less at a time", calls, held)
	}
	return nil
}

func (g *Gateway) release(bytes int64) {
	g.calls.Add(-1)
	g.bytes.Add(-bytes)
}

// bounded returns a context with a deadline, for a call that may have none.
func (g *Gateway) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, callTimeout)
}
