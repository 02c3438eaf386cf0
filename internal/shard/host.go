package shard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/vfs"
	"sheaf.dev/sheaf/internal/volume"
)

const (
	// inspectEvery is the time between two looks at a volume that is not served.
	inspectEvery = 2 * time.Second
	// guardEvery and guardStrikes: a volume that is lost under a shard is noticed within a few seconds, and one read that
	// fails does not stop a shard.
	guardEvery   = 3 * time.Second
	guardStrikes = 2
	// guardPatience: a read of the superblock that takes longer is worth a word, but slow is not lost.
	guardPatience = 15 * time.Second
	// metaPatience bounds one question to etcd.
	metaPatience = 5 * time.Second
)

// Host runs a shard where its volume may be served, and says why where it may not: it answers health, AdminService and HTTP
// in every state, from the first moment on. What cannot be served is looked at again until it can.
type Host struct {
	cfg    Config
	shared *sharedListener

	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has ended
	fatal  chan error    // why it ended by itself, without Stay

	mu       sync.Mutex
	shard    *Shard // nil: nothing is served
	held     *heldError
	seen     inspected
	server   *heldServer // answers while there is no shard
	stop     context.Context
	progress progress
}

// StartHost listens, and serves the volume as soon as it may. The error is that of a configuration that cannot be, or of an
// address that is taken.
func StartHost(ctx context.Context, cfg Config) (*Host, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("shard %s: %w", cfg.Name, err)
	}
	if cfg.FS == nil {
		cfg.FS = vfs.OS{}
	}
	root, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", cfg.Name, err)
	}
	h := &Host{
		cfg: cfg, shared: shareListener(root), ended: make(chan struct{}), fatal: make(chan error, 1),
		held: hold(recordv1.ShardState_SHARD_STATE_PENDING, "the volume has not been looked at yet"),
	}
	if cfg.Registry != nil {
		if err := cfg.Registry.Register(&stateCollector{h}); err != nil {
			return nil, errors.Join(fmt.Errorf("shard %s: %w", cfg.Name, err), h.shared.close())
		}
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.answer()
	go h.run()
	return h, nil
}

// Addr is the address that gRPC listens on.
func (h *Host) Addr() string { return h.shared.root.Addr().String() }

// Failed says why the host has ended by itself; never with Config.Stay.
func (h *Host) Failed() <-chan error { return h.fatal }

// Stop stops as Shard.Stop does.
func (h *Host) Stop(ctx context.Context) error {
	h.mu.Lock()
	h.stop = ctx
	h.mu.Unlock()
	h.cancel()
	<-h.ended
	h.mu.Lock()
	shard, server := h.shard, h.server
	h.mu.Unlock()
	var err error
	if shard != nil {
		err = shard.Stop(ctx)
	}
	if server != nil {
		server.stop()
	}
	if h.cfg.Registry != nil {
		h.cfg.Registry.Unregister(&stateCollector{h})
	}
	return errors.Join(err, h.shared.close())
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
		if !h.cfg.Stay && !errors.Is(held, errEtcd) {
			h.fatal <- held
			return
		}
		if errors.Is(held, errDeposed) {
			<-h.ctx.Done() // to come back when the other one is silent would set back what it has acknowledged
			return
		}
		select {
		case <-h.ctx.Done():
		case <-time.After(h.cfg.inspectEvery):
		}
	}
}

// setHeld notes why nothing is served, and logs it where it is news.
func (h *Host) setHeld(held *heldError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil || h.held.state != held.state || h.held.Error() != held.Error() {
		h.cfg.Logger.Error("the volume is not served", "shard", h.cfg.Name, "state", held.state.Word(), "reason", held.Error())
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
	seen, held := inspect(&h.cfg)
	h.mu.Lock()
	h.seen = seen
	h.mu.Unlock()
	if held != nil {
		return held
	}
	if err := h.store(seen.superblock); err != nil {
		return classify(err)
	}
	cfg := h.cfg
	cfg.listener = h.shared.turn(h.quiet)
	shard, err := Start(h.ctx, cfg)
	if err != nil {
		h.answer()
		held := classify(err)
		if held.state == recordv1.ShardState_SHARD_STATE_DISK_LOST {
			held.err = expecting(h.cfg.Wanted.Volume, held.err)
		}
		return held
	}
	// From now on just this volume is served here, also after it was lost.
	h.mu.Lock()
	h.cfg.Wanted.Volume = shard.volume.Superblock().Volume
	h.shard, h.held = shard, nil
	h.mu.Unlock()
	h.cfg.Logger.Info("shard serves", "name", cfg.Name, "address", h.Addr(), "dir", cfg.Dir)
	held = h.guard(shard)
	if held != nil { // nil: stopped, Stop does the rest
		h.lose(shard, held)
	}
	return held
}

// lose takes a shard out of service: first the word, then the calls, then the files.
func (h *Host) lose(shard *Shard, held *heldError) {
	h.setHeld(held)
	h.mu.Lock()
	h.shard, h.seen = nil, inspected{superblock: shard.volume.Superblock()}
	h.mu.Unlock()
	h.answer()
	shard.Kill()
}

// store asks etcd for the store, and refuses one that is not meant, or in which the volume may not serve.
func (h *Host) store(sb volume.Superblock) error {
	ctx, cancel := context.WithTimeout(h.ctx, metaPatience)
	defer cancel()
	meta, err := h.cfg.Placement.Meta(ctx)
	want := h.cfg.Wanted.Store
	switch {
	case errors.Is(err, placement.ErrNoMeta) && sb.Volume != uuid.Nil:
		return fmt.Errorf("%w: this volume is of store %s: where etcd has lost it, rebuild it with sheaf recover placement", err, sb.Store)
	case errors.Is(err, placement.ErrNoMeta):
		return fmt.Errorf("%w: it waits until the store is made", err)
	case err != nil:
		return fmt.Errorf("%w: %w", errEtcd, err)
	case want != uuid.Nil && meta.StoreUUID != want:
		return fmt.Errorf("etcd holds store %s, wanted is store %s: see that endpoints, prefix and store are right", meta.StoreUUID, want)
	case sb.Volume == uuid.Nil || sb.Store != meta.StoreUUID:
		return nil // it is new, or refused when it is opened
	}
	// Start asks this too. It may take a while to see whether another process lives, and here who asks for the state is answered meanwhile.
	_, err = mayRegister(h.ctx, &h.cfg, h.address(), sb)
	switch {
	case err == nil, isRenewed(&h.cfg, err):
		return nil
	case errors.Is(err, placement.ErrNameTaken), errors.Is(err, placement.ErrRolledBack), errors.Is(err, volume.ErrLocked):
		return err
	}
	return fmt.Errorf("%w: %w", errEtcd, err)
}

// guard returns why a shard may not go on, or nil when the host is stopped.
func (h *Host) guard(shard *Shard) *heldError {
	tick := time.NewTicker(h.cfg.guardEvery)
	defer tick.Stop()
	opened := shard.volume.Superblock()
	for strikes := 0; ; {
		select {
		case <-h.ctx.Done():
			return nil
		case <-shard.deposed:
			return hold(recordv1.ShardState_SHARD_STATE_FOREIGN, "%w: nothing is served any more: stop one of them, they are on copies of one "+
				"volume or have one name: %w", errDeposed, shard.successor)
		case <-tick.C:
		}
		shard.refreshHealth()
		err := h.look(shard, opened)
		if err == nil {
			strikes = 0
			continue
		}
		strikes++
		h.cfg.Logger.Warn("the volume is not what it was", "shard", h.cfg.Name, "error", err, "times", strikes)
		if strikes >= guardStrikes {
			return hold(recordv1.ShardState_SHARD_STATE_DISK_LOST, "%w: writes are not acknowledged and nothing is served any more: bring the "+
				"disk back, or give it up", err)
		}
	}
}

// look compares the volume with what was opened. A disk that does not answer at all is a problem to show, and waited for:
// it may be slow.
func (h *Host) look(shard *Shard, opened volume.Superblock) error {
	done := make(chan error, 1)
	go func() { done <- stillSame(h.cfg.FS, h.cfg.Dir, opened) }()
	const slow = recordv1.VolumeSilent
	patience := time.NewTimer(guardPatience)
	defer patience.Stop()
	for {
		select {
		case err := <-done:
			shard.problem(slow, nil)
			readOnly, errMount := volume.ReadOnly(h.cfg.FS, h.cfg.Dir)
			if readOnly {
				errMount = errors.New("the file system is mounted read-only: the kernel does that after an error of the disk")
			}
			shard.problem("the mount of the volume", errMount)
			return err
		case <-patience.C:
			shard.problem(slow, fmt.Errorf("a read of its superblock takes more than %v", guardPatience))
		case <-shard.deposed:
			return nil
		case <-h.ctx.Done():
			return nil
		}
	}
}
