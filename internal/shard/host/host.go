// Package host runs the process of a shard, whether the shard serves or not. It decides whose volume this is, and
// whether the volume may be served. If it may not, package host says why. It also runs the gRPC and HTTP servers, which
// answer from the first moment of the process to the last.
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
	// guardStrikes is the number of failed reads in a row that stop a shard; a single one does not.
	guardStrikes = 2
	// VolumeSilent is the problem of a shard whose disk blocks without an error.
	VolumeSilent = "the volume does not answer"
	// guardEvery and guardPatience are the defaults of Times.Guard and Times.GuardPatience. Many disks retry a bad sector
	// for 7 s, and other reads wait meanwhile.
	guardEvery    = 2 * time.Second
	guardPatience = 10 * time.Second
	// SilentWithin bounds the time from the moment when the disk of a serving shard begins to block reads until the shard
	// reports it.
	SilentWithin = guardEvery + guardPatience
	// metaPatience bounds one request to etcd.
	metaPatience = 5 * time.Second
)

// Shard is a shard that serves the volume. Safe for concurrent use.
type Shard interface {
	// Status returns the present state; State and Load return parts of it.
	Status() *recordv1.ShardStatus
	State() (recordv1.ShardState, string)
	Load() *recordv1.Load
	// Ready is nil when a group serves, or there is nothing to load.
	Ready() error
	// Superblock returns the superblock of the volume as it was opened.
	Superblock() volume.Superblock
	// Problem records a problem for an operator; a nil error removes it.
	Problem(what string, err error)
	// Superseded is closed when another process serves in the place of the shard; Successor then names that process.
	Superseded() <-chan struct{}
	Successor() error
	// Stop ends the shard gracefully, and the server with it. Kill ends the shard at once, and the server keeps
	// running.
	Stop(ctx context.Context) error
	Kill()
}

// Options of a Host. All but Registry are required.
type Options struct {
	Identity Identity // an empty Address: the address that the server listens on
	Server   ServerOptions
	// Stay makes a Host whose volume cannot be served keep running and report why. Without Stay the Host ends with the
	// error.
	Stay bool
	// Row returns a new row of the shard, with what is known before it serves.
	Row      func() *recordv1.Shard
	Registry prometheus.Registerer // nil: no metrics
	Logger   *slog.Logger
	// Start starts a shard on the volume, with its services on the server.
	Start func(ctx context.Context, id Identity, server *Server) (Shard, error)

	Times Times
}

// Times are the intervals of a Host; tests use shorter ones. A zero field takes its default.
type Times struct {
	Inspect time.Duration // time between two checks of a volume that is not served; default 2 s
	Guard   time.Duration // time between two checks of a volume that is served; default 2 s
	// GuardPatience is how long a read of a served volume may take before it is reported. The time is long, because a slow
	// volume is not a lost one. The default is 10 s.
	GuardPatience time.Duration
	// StopPatience is how long a stop waits for work that it cannot interrupt, on files of a disk that does not answer.
	// The default is 10 s.
	StopPatience time.Duration
}

// Host runs a shard while its volume may be served, and reports why while it may not. From the first moment on it
// answers health, AdminService and HTTP in every state. It repeatedly checks a volume that cannot be served, until it
// can be served.
type Host struct {
	opts   Options
	server *Server

	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has ended
	fatal  chan error    // why the host ended by itself, without Stay

	mu       sync.Mutex
	id       Identity // only its Wanted.Volume changes
	shard    Shard    // nil: nothing is served
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
	h.server.accept(h.deaf)
	go h.run()
	return h, nil
}

// deaf reports the error because of which connections are no longer accepted.
func (h *Host) deaf(err error) {
	if shard := h.serving(); shard != nil {
		shard.Problem("serving gRPC", err)
		return
	}
	h.opts.Logger.Error("serving gRPC", "shard", h.id.Name, "error", err)
}

// Addr is the address that gRPC listens on.
func (h *Host) Addr() string { return h.server.Addr() }

// Failed receives the error with which the host ended by itself; never with Options.Stay.
func (h *Host) Failed() <-chan error { return h.fatal }

// Stop stops the shard as Shard.Stop does. If the disk does not answer, it stops waiting shortly after ctx ends.
// The error then says so, and the process should exit, which for the disk is the same as a kill.
func (h *Host) Stop(ctx context.Context) error {
	h.cancel()
	done := make(chan error, 1)
	go func() { done <- h.end(ctx) }()
	if h.serving() != nil { // otherwise no call is in progress
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

// serving returns the shard that serves; nil: no shard serves.
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
			// resuming when the other process falls silent would roll back writes that the other process has acknowledged
			<-h.ctx.Done()
			return
		}
		backoff.Sleep(h.ctx, h.opts.Times.Inspect)
	}
}

// setHeld records why nothing is served, and logs a reason that is new.
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
	// errEtcd marks errors that end when etcd answers and holds what a shard needs.
	errEtcd = errors.New("etcd does not answer")
	// errSuperseded marks the end of a shard in whose place another process serves.
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
	// From now on only this volume is served here, even after it was lost.
	h.mu.Lock()
	h.id.Wanted.Volume = shard.Superblock().Volume
	h.shard, h.held = shard, nil
	h.mu.Unlock()
	h.opts.Logger.Info("shard serves", "name", id.Name, "address", h.Addr(), "dir", id.Dir)
	held = h.guard(&id, shard)
	if held != nil { // nil: the host was stopped, and Stop does the rest
		h.takeOut(shard, held)
	}
	return held
}

// takeOut takes a shard out of service: it records the reason, then ends the calls, then closes the files.
func (h *Host) takeOut(shard Shard, held *heldError) {
	h.setHeld(held)
	h.mu.Lock()
	h.shard, h.seen = nil, inspected{superblock: shard.Superblock()}
	h.mu.Unlock()
	shard.Kill()
}

// store asks etcd for the store. It refuses a store other than the intended one, or one in which the volume may not
// serve.
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
		return nil // the volume is new, or is refused when it is opened
	}
	// Options.Start checks this again. The check may take a while, because it has to find out whether another process
	// is alive. When it is made here, requests for the state are answered meanwhile.
	_, err = id.MayRegister(h.ctx, sb)
	switch {
	case err == nil, id.Renews(err):
		return nil
	case errors.Is(err, placement.ErrNameTaken), errors.Is(err, placement.ErrRolledBack), errors.Is(err, volume.ErrLocked):
		return err
	}
	return etcdFails(err)
}

// waited is an error in the content of etcd that a person has to correct: the store must be created, or a key repaired.
// The host waits for the correction, as it waits for an etcd that does not answer.
type waited struct{ error }

func (w waited) Unwrap() error      { return w.error }
func (waited) Is(target error) bool { return target == errEtcd }

// etcdFails returns the error for an etcd that gives no usable answer.
func etcdFails(err error) error {
	if errors.Is(err, placement.ErrUnusable) {
		return waited{err}
	}
	return fmt.Errorf("%w: %w", errEtcd, err)
}

// guard returns the reason why a shard must not continue, or nil when the host is stopped.
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

// look compares the volume with its state when it was opened. A disk that does not answer at all is reported as a
// problem and waited for, because it may be slow.
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
			if vfs.IsShortage(err) { // the process lacks resources, so the disk may be well
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
