// Package host runs the process of a shard, even while the shard cannot serve. It checks whose volume is mounted, and
// whether the volume may be served. If it may not, the host reports the reason. The host also runs the gRPC and HTTP
// servers, which respond for the whole lifetime of the process.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
)

const (
	// guardStrikes is the number of consecutive failed checks that stop a shard. A single failure does not stop it.
	guardStrikes = 2
	// VolumeSilent is the problem that a shard reports if its disk hangs without an error.
	VolumeSilent = "the volume does not answer"
	// guardEvery and guardPatience are the defaults of Times.Guard and Times.GuardPatience. The patience is long,
	// because many disks retry a bad sector for 7 s, while other reads wait.
	guardEvery    = 2 * time.Second
	guardPatience = 10 * time.Second
	// SilentWithin bounds the time after which a serving shard reports that its disk blocks reads.
	SilentWithin = guardEvery + guardPatience
	// metaPatience bounds one request to etcd.
	metaPatience = 5 * time.Second
)

// Shard is a shard that serves the volume. It is safe for concurrent use.
type Shard interface {
	// Status returns the current status. State and Load return parts of it.
	Status() *recordv1.ShardStatus
	State() (recordv1.ShardState, string)
	Load() *recordv1.Load
	// Ready returns nil if a group serves, or if there is nothing to load.
	Ready() error
	// Superblock returns the volume's superblock as of its opening.
	Superblock() volume.Superblock
	// Problem records a problem that operators should see. If err is nil, it removes the problem.
	Problem(what string, err error)
	// Superseded is closed when another process serves in the place of the shard. Successor then returns an error
	// that names that process.
	Superseded() <-chan struct{}
	Successor() error
	// Stop stops the shard gracefully, together with the server. Kill stops the shard immediately, while the server keeps
	// running.
	Stop(ctx context.Context) error
	Kill()
}

// Options configures a Host. All fields but Registry are required.
type Options struct {
	Identity Identity // if Address is empty, the listener's address is used
	Server   ServerOptions
	// Stay decides what happens if the volume cannot be served. With Stay, the Host keeps running and reports the reason.
	// Without Stay, the Host stops with the error.
	Stay bool
	// Row returns a new row for the shard, with the values that are known before the shard serves.
	Row      func() *recordv1.Shard
	Registry prometheus.Registerer // if nil, no metrics are exported
	Logger   *slog.Logger
	// Start starts a shard on the volume, with its services on the server.
	Start func(ctx context.Context, id Identity, server *Server) (Shard, error)

	Times Times
}

// Times are the intervals of a Host; tests use shorter ones. A zero field takes its default.
type Times struct {
	Inspect time.Duration // time between two checks of a volume that is not served; default 2 s
	Guard   time.Duration // time between two checks of a volume that is served; default 2 s
	// GuardPatience is how long a read of a served volume may take before it is reported. The patience is long,
	// because a slow volume is not a lost one. The default is 10 s.
	GuardPatience time.Duration
	// StopPatience is how long a stop waits for file operations on a disk that does not respond, because such operations
	// cannot be interrupted. The default is 10 s.
	StopPatience time.Duration
}

// Host runs a shard while its volume may be served, and otherwise reports the reason. In every state, for its whole
// lifetime, it serves health checks, AdminService and HTTP. It repeatedly checks a volume that cannot be served, until
// the volume can be served.
type Host struct {
	opts   Options
	server *Server

	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has ended
	fatal  chan error    // receives the error with which the host stopped by itself

	mu       sync.Mutex
	id       Identity // never changes, except for Wanted.Volume
	shard    Shard    // nil while nothing is served
	held     *heldError
	seen     inspected
	progress progress
}

// Start listens, and serves the volume as soon as it may be served. It returns an error if the address is in use.
func Start(ctx context.Context, opts Options) (*Host, error) {
	h := &Host{
		opts: opts, id: opts.Identity, ended: make(chan struct{}), fatal: make(chan error, 1),
		held: hold(recordv1.ShardState_SHARD_STATE_PENDING, "the volume has not been looked at yet"),
	}
	t := &h.opts.Times
	t.Inspect, t.Guard = cmp.Or(t.Inspect, 2*time.Second), cmp.Or(t.Guard, guardEvery)
	t.GuardPatience, t.StopPatience = cmp.Or(t.GuardPatience, guardPatience), cmp.Or(t.StopPatience, 10*time.Second)
	var err error
	if h.server, err = listen(ctx, &opts.Server, heldAdmin{host: h}, h.refuse); err != nil {
		return nil, err
	}
	if h.id.Address == "" {
		h.id.Address = h.server.Addr()
	}
	if opts.Registry != nil {
		if err := opts.Registry.Register(&stateCollector{h}); err != nil {
			h.server.Stop()
			return nil, err
		}
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.server.accept(h.stoppedAccepting)
	go h.run()
	return h, nil
}

// stoppedAccepting reports the error with which the server stopped accepting connections.
func (h *Host) stoppedAccepting(err error) {
	if shard := h.serving(); shard != nil {
		shard.Problem("serving gRPC", err)
		return
	}
	h.opts.Logger.Error("serving gRPC", "shard", h.id.Name, "error", err)
}

// Addr returns the address on which gRPC listens.
func (h *Host) Addr() string { return h.server.Addr() }

// Failed returns a channel that receives the error with which the host stopped by itself. With Options.Stay it never
// receives one.
func (h *Host) Failed() <-chan error { return h.fatal }

// Stop stops the shard as Shard.Stop does. If the disk does not respond, it stops waiting shortly after ctx is done. In
// that case it returns an error, and the process should exit. For the disk, that is the same as a kill.
func (h *Host) Stop(ctx context.Context) error {
	h.cancel()
	done := make(chan error, 1)
	go func() { done <- h.end(ctx) }()
	if h.serving() != nil { // calls can be in progress only while a shard serves
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
		}
	}
	select {
	case err := <-done:
		return err
	case <-time.After(h.opts.Times.StopPatience):
		return fmt.Errorf("shard %s: %s: it was left as it is", h.id.Name, VolumeSilent)
	}
}

// end stops the shard and the server, and waits for them without a limit.
func (h *Host) end(ctx context.Context) error {
	<-h.ended
	var err error
	if shard := h.serving(); shard != nil {
		err = shard.Stop(ctx)
	}
	h.server.Stop()
	if h.opts.Registry != nil {
		h.opts.Registry.Unregister(&stateCollector{h})
	}
	return err
}

// serving returns the shard that serves, or nil if none serves.
func (h *Host) serving() Shard {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shard
}

// identity returns the current identity.
func (h *Host) identity() Identity {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.id
}

// run serves the volume whenever it may be served, until the host is stopped.
func (h *Host) run() {
	defer close(h.ended)
	for h.ctx.Err() == nil {
		held := h.serve()
		if h.ctx.Err() != nil {
			return
		}
		h.setHeld(held)
		if !h.opts.Stay && !errors.Is(held, errEtcd) {
			h.fatal <- held
			return
		}
		if errors.Is(held, errSuperseded) {
			// This shard must not resume even if the other process falls silent later. Otherwise it would roll back writes
			// that the other process has acknowledged.
			<-h.ctx.Done()
			return
		}
		backoff.Sleep(h.ctx, h.opts.Times.Inspect)
	}
}

// setHeld records the reason why nothing is served. It logs the reason if it has changed.
func (h *Host) setHeld(held *heldError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil || h.held.state != held.state || h.held.Error() != held.Error() {
		h.opts.Logger.Error("the volume is not served", "shard", h.id.Name, "state", held.state.Word(), "reason",
			held.Error())
	}
	h.held = held
}

var (
	// errEtcd marks errors that end by themselves once etcd responds and has the data that a shard needs.
	errEtcd = errors.New("etcd does not answer")
	// errSuperseded marks the end of a shard because another process serves in its place.
	errSuperseded = errors.New("another process took the place of this shard while it was silent")
)

// serve checks the volume and starts a shard on it. It returns the reason why the shard could not start or
// must stop, or nil if the host was stopped.
func (h *Host) serve() *heldError {
	id := h.identity()
	seen, held := id.inspect()
	h.mu.Lock()
	h.seen = seen
	h.mu.Unlock()
	if held != nil {
		return held
	}
	if err := h.store(&id, seen.superblock); err != nil {
		return classify(err)
	}
	shard, err := h.opts.Start(h.ctx, id, h.server)
	if err != nil {
		held := classify(err)
		if held.state == recordv1.ShardState_SHARD_STATE_DISK_LOST {
			held.err = expecting(id.Wanted.Volume, held.err)
		}
		return held
	}
	// From now on, this process serves no other volume, even if it loses this one.
	h.mu.Lock()
	h.id.Wanted.Volume = shard.Superblock().Volume
	h.shard, h.held = shard, nil
	h.mu.Unlock()
	h.opts.Logger.Info("shard serves", "name", id.Name, "address", h.Addr(), "dir", id.Dir)
	held = h.guard(&id, shard)
	if held != nil { // if held is nil, the host was stopped, and Stop does the rest
		h.takeOut(shard, held)
	}
	return held
}

// takeOut takes a shard out of service: it records the reason, aborts the calls, and closes the files, in this order.
func (h *Host) takeOut(shard Shard, held *heldError) {
	h.setHeld(held)
	h.mu.Lock()
	h.shard, h.seen = nil, inspected{superblock: shard.Superblock()}
	h.mu.Unlock()
	shard.Kill()
}

// store reads the store's metadata from etcd. It returns an error if this is not the intended store, or if the volume
// must not be served in this store.
func (h *Host) store(id *Identity, sb volume.Superblock) error {
	ctx, cancel := context.WithTimeout(h.ctx, metaPatience)
	defer cancel()
	meta, err := id.Placement.Meta(ctx)
	want := id.Wanted.Store
	switch {
	case errors.Is(err, placement.ErrNoMeta) && sb.Volume != uuid.Nil:
		return fmt.Errorf("%w: this volume is of store %s: where etcd has lost it, rebuild it with sheaf recover placement",
			err, sb.Store)
	case errors.Is(err, placement.ErrNoMeta):
		return waited{fmt.Errorf("%w: it waits until the store is made", err)}
	case err != nil:
		return etcdFails(err)
	case want != uuid.Nil && meta.StoreUUID != want:
		return fmt.Errorf("etcd holds store %s, wanted is store %s: see that endpoints, prefix and store are right",
			meta.StoreUUID, want)
	case sb.Volume == uuid.Nil || sb.Store != meta.StoreUUID:
		return nil // the volume is new, or Options.Start refuses it
	}
	// Options.Start makes this check again. The check must find out whether another process is alive, so it may take a
	// while. It is made here as well, because the host can respond to status requests while it waits here.
	_, err = id.MayRegister(h.ctx, sb)
	switch {
	case err == nil, id.Renews(err):
		return nil
	case errors.Is(err, placement.ErrNameTaken), errors.Is(err, placement.ErrRolledBack), errors.Is(err, volume.ErrLocked):
		return err
	}
	return etcdFails(err)
}

// waited wraps an error that an administrator must resolve in etcd, by creating the store or by repairing a key. Until
// then the host waits, just as it does while etcd does not respond.
type waited struct{ error }

func (w waited) Unwrap() error      { return w.error }
func (waited) Is(target error) bool { return target == errEtcd }

// etcdFails wraps the error of a request to which etcd gave no usable response.
func etcdFails(err error) error {
	if errors.Is(err, placement.ErrUnusable) {
		return waited{err}
	}
	return fmt.Errorf("%w: %w", errEtcd, err)
}

// guard watches a shard that serves. It returns the reason when the shard must stop, or nil if the host is stopped.
func (h *Host) guard(id *Identity, shard Shard) *heldError {
	tick := time.NewTicker(h.opts.Times.Guard)
	defer tick.Stop()
	opened := shard.Superblock()
	for strikes := 0; ; {
		select {
		case <-h.ctx.Done():
			return nil
		case <-shard.Superseded():
			return hold(recordv1.ShardState_SHARD_STATE_FOREIGN,
				"%w: nothing is served any more: stop one of them, they are on copies of one "+
					"volume or have one name: %w", errSuperseded, shard.Successor())
		case <-tick.C:
		}
		state, _ := shard.State()
		h.server.setServing(state != recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL)
		shard.Problem("taking connections", h.server.listener.Refused())
		err := h.look(id, shard, opened)
		if err == nil {
			strikes = 0
			continue
		}
		strikes++
		h.opts.Logger.Warn("the volume is not what it was", "shard", h.id.Name, "error", err, "times", strikes)
		if strikes >= guardStrikes {
			return hold(recordv1.ShardState_SHARD_STATE_DISK_LOST,
				"%w: writes are not acknowledged and nothing is served any more: bring the "+
					"disk back, or give it up", err)
		}
	}
}

// look checks that the volume has not changed since it was opened. If the disk does not respond at all, look reports a
// problem and continues to wait, because the disk may only be slow.
func (h *Host) look(id *Identity, shard Shard, opened volume.Superblock) error {
	done := make(chan error, 1)
	go func() { done <- id.stillSame(opened) }()
	patience := time.NewTimer(h.opts.Times.GuardPatience)
	defer patience.Stop()
	for {
		select {
		case err := <-done:
			shard.Problem(VolumeSilent, nil)
			shard.Problem("looking at the volume", nil)
			if vfs.IsShortage(err) { // the process lacks resources, and the disk may be intact
				shard.Problem("looking at the volume", err)
				err = nil
			}
			readOnly, errMount := volume.ReadOnly(id.FS, id.Dir)
			if readOnly {
				errMount = errors.New("the file system is mounted read-only: the kernel does that after an error of the disk")
			}
			shard.Problem("the mount of the volume", errMount)
			return err
		case <-patience.C:
			shard.Problem(VolumeSilent, fmt.Errorf("a read of its superblock takes more than %v", h.opts.Times.GuardPatience))
		case <-shard.Superseded():
			return nil
		case <-h.ctx.Done():
			return nil
		}
	}
}
