// Package host is what the process of a shard is before and beside a shard that serves: whose volume it has, whether
// that may be served and why not, and the servers of gRPC and HTTP, which answer from the first moment to the last.
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

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/status"
	"sheaf.dev/sheaf/internal/storage/volume"
)

const (
	// guardStrikes: one read that fails does not stop a shard.
	guardStrikes = 2
	// VolumeSilent is the problem of a shard whose disk lets it wait without an error.
	VolumeSilent = "the volume does not answer"
	// metaPatience bounds one question to etcd.
	metaPatience = 5 * time.Second
)

// Shard is one that serves the volume. Safe for concurrent use.
type Shard interface {
	// Status tells the present state; State and Load are parts of it.
	Status() status.Shard
	State() (recordv1.ShardState, string)
	Load() status.Load
	// Ready is nil when a group serves, or there is nothing to load.
	Ready() error
	// Superblock of the volume, as it was opened.
	Superblock() volume.Superblock
	// Problem notes what a person should see; a nil error takes it back.
	Problem(what string, err error)
	// Deposed is closed when another process serves in the place of the shard; Successor then says which.
	Deposed() <-chan struct{}
	Successor() error
	// Stop ends the shard gracefully, and with it the server. Kill ends the shard at once, and the server goes on.
	Stop(ctx context.Context) error
	Kill()
}

// Options of a Host. All but Registry are required.
type Options struct {
	Identity Identity // an empty Address: the one that the server listens on
	Server   ServerOptions
	// Stay: a Host whose volume cannot be served stays up and says so; else it ends with the error.
	Stay bool
	// Status is what a shard tells of itself that does not serve, as far as it is known before.
	Status   status.Shard
	Registry prometheus.Registerer // nil: no metrics
	Logger   *slog.Logger
	// Start starts a shard on the volume, with its services on the server.
	Start func(ctx context.Context, id Identity, server *Server) (Shard, error)

	Times Times
}

// Times of a Host; tests take less. A zero field takes its default.
type Times struct {
	Inspect time.Duration // between two looks at a volume that is not served; 2 s
	Guard   time.Duration // between two looks at a volume that is served; 3 s
	// GuardPatience: a read of such a volume that takes longer is worth a word, but slow is not lost; 15 s.
	GuardPatience time.Duration
	// StopPatience is how long a stop waits for what it cannot end: files of a disk that does not answer; 10 s.
	StopPatience time.Duration
}

// Host runs a shard where its volume may be served, and says why where it may not: it answers health, AdminService and
// HTTP in every state, from the first moment on. What cannot be served is looked at again until it can.
type Host struct {
	opts   Options
	server *Server

	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has ended
	fatal  chan error    // why it ended by itself, without Stay

	mu       sync.Mutex
	id       Identity // of it, just Wanted.Volume changes
	shard    Shard    // nil: nothing is served
	held     *heldError
	seen     inspected
	progress progress
}

// Start listens, and serves the volume as soon as it may. The error is that of an address that is taken.
func Start(ctx context.Context, opts Options) (*Host, error) {
	h := &Host{
		opts: opts, id: opts.Identity, ended: make(chan struct{}), fatal: make(chan error, 1),
		held: hold(recordv1.ShardState_SHARD_STATE_PENDING, "the volume has not been looked at yet"),
	}
	t := &h.opts.Times
	t.Inspect, t.Guard = cmp.Or(t.Inspect, 2*time.Second), cmp.Or(t.Guard, 3*time.Second)
	t.GuardPatience, t.StopPatience = cmp.Or(t.GuardPatience, 15*time.Second), cmp.Or(t.StopPatience, 10*time.Second)
	var err error
	if h.server, err = listen(ctx, &opts.Server, held{heldAdmin{host: h}, h.refuse}); err != nil {
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

// deaf says that no connection is accepted any more.
func (h *Host) deaf(err error) {
	if shard := h.serving(); shard != nil {
		shard.Problem("serving gRPC", err)
		return
	}
	h.opts.Logger.Error("serving gRPC", "shard", h.id.Name, "error", err)
}

// Addr is the address that gRPC listens on.
func (h *Host) Addr() string { return h.server.Addr() }

// Failed says why the host has ended by itself; never with Options.Stay.
func (h *Host) Failed() <-chan error { return h.fatal }

// Stop stops the shard as its Stop does. A disk that does not answer is not waited for much longer than until ctx ends:
// the error says so, and the process is to end, which is to the disk as if it was killed.
func (h *Host) Stop(ctx context.Context) error {
	h.cancel()
	done := make(chan error, 1)
	go func() { done <- h.end(ctx) }()
	if h.serving() != nil { // else no call is under way
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

// end ends everything, in whatever time it takes.
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

// serving is the shard that serves; nil: none.
func (h *Host) serving() Shard {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shard
}

// identity as it is now.
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
		if errors.Is(held, errDeposed) {
			<-h.ctx.Done() // to come back when the other one is silent would set back what it has acknowledged
			return
		}
		select {
		case <-h.ctx.Done():
		case <-time.After(h.opts.Times.Inspect):
		}
	}
}

// setHeld notes why nothing is served, and logs it where it is news.
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
	// errEtcd marks what waits for etcd.
	errEtcd = errors.New("etcd does not answer")
	// errDeposed marks the end of a shard in whose place another process serves.
	errDeposed = errors.New("another process took the place of this shard while it was silent")
)

// serve looks at the volume, starts a shard on it and returns when that may not go on, or why it was not started.
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
	// From now on just this volume is served here, also after it was lost.
	h.mu.Lock()
	h.id.Wanted.Volume = shard.Superblock().Volume
	h.shard, h.held = shard, nil
	h.mu.Unlock()
	h.opts.Logger.Info("shard serves", "name", id.Name, "address", h.Addr(), "dir", id.Dir)
	held = h.guard(&id, shard)
	if held != nil { // nil: stopped, Stop does the rest
		h.lose(shard, held)
	}
	return held
}

// lose takes a shard out of service: first the word, then the calls, then the files.
func (h *Host) lose(shard Shard, held *heldError) {
	h.setHeld(held)
	h.mu.Lock()
	h.shard, h.seen = nil, inspected{superblock: shard.Superblock()}
	h.mu.Unlock()
	shard.Kill()
}

// store asks etcd for the store, and refuses one that is not meant, or in which the volume may not serve.
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
		return fmt.Errorf("%w: it waits until the store is made", err)
	case err != nil:
		return fmt.Errorf("%w: %w", errEtcd, err)
	case want != uuid.Nil && meta.StoreUUID != want:
		return fmt.Errorf("etcd holds store %s, wanted is store %s: see that endpoints, prefix and store are right",
			meta.StoreUUID, want)
	case sb.Volume == uuid.Nil || sb.Store != meta.StoreUUID:
		return nil // it is new, or refused when it is opened
	}
	// Options.Start asks this too. It may take a while to see whether another process lives, and here who asks for the
	// state is answered meanwhile.
	_, err = id.MayRegister(h.ctx, sb)
	switch {
	case err == nil, id.Renews(err):
		return nil
	case errors.Is(err, placement.ErrNameTaken), errors.Is(err, placement.ErrRolledBack), errors.Is(err, volume.ErrLocked):
		return err
	}
	return fmt.Errorf("%w: %w", errEtcd, err)
}

// guard returns why a shard may not go on, or nil when the host is stopped.
func (h *Host) guard(id *Identity, shard Shard) *heldError {
	tick := time.NewTicker(h.opts.Times.Guard)
	defer tick.Stop()
	opened := shard.Superblock()
	for strikes := 0; ; {
		select {
		case <-h.ctx.Done():
			return nil
		case <-shard.Deposed():
			return hold(recordv1.ShardState_SHARD_STATE_FOREIGN,
				"%w: nothing is served any more: stop one of them, they are on copies of one "+
					"volume or have one name: %w", errDeposed, shard.Successor())
		case <-tick.C:
		}
		state, _ := shard.State()
		h.server.setServing(state != recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL)
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

// look compares the volume with what was opened. A disk that does not answer at all is a problem to show, and waited
// for: it may be slow.
func (h *Host) look(id *Identity, shard Shard, opened volume.Superblock) error {
	done := make(chan error, 1)
	go func() { done <- id.stillSame(opened) }()
	patience := time.NewTimer(h.opts.Times.GuardPatience)
	defer patience.Stop()
	for {
		select {
		case err := <-done:
			shard.Problem(VolumeSilent, nil)
			readOnly, errMount := volume.ReadOnly(id.FS, id.Dir)
			if readOnly {
				errMount = errors.New("the file system is mounted read-only: the kernel does that after an error of the disk")
			}
			shard.Problem("the mount of the volume", errMount)
			return err
		case <-patience.C:
			shard.Problem(VolumeSilent, fmt.Errorf("a read of its superblock takes more than %v", h.opts.Times.GuardPatience))
		case <-shard.Deposed():
			return nil
		case <-h.ctx.Done():
			return nil
		}
	}
}
