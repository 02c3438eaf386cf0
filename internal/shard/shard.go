package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/archive"
	"sheaf.dev/sheaf/internal/shard/care"
	"sheaf.dev/sheaf/internal/shard/disk"
	"sheaf.dev/sheaf/internal/shard/follow"
	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/shard/lead"
	"sheaf.dev/sheaf/internal/shard/load"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/shard/serve"
	"sheaf.dev/sheaf/internal/shard/views"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Shard owns the replicas of one volume and serves them. It is safe for concurrent use.
type Shard struct {
	cfg       Config
	logger    *slog.Logger
	meta      placement.Meta
	volume    *disk.Disk
	committer *replica.Committer
	id        host.Identity // the name and volume of this shard in etcd
	boot      uuid.UUID     // chosen at random at each start
	lookups   lookups       // looks up groups of other shards in etcd for callers

	replicas  *replicas.Set   // the state of the replicas on the volume, and the routes for calls
	watcher   *follow.Watcher // follows etcd, and acts on the state of this shard's groups in etcd
	loading   *load.Loader    // loads groups into memory
	installer *installer      // fetches files from other shards
	steerer   *lead.Steerer   // steers the groups that this shard leads
	quotas    *quota.Set

	server  *host.Server
	metrics *metrics
	slow    slow
	calls   *serve.Server // handles calls from clients, gateways and administrators

	stopping atomic.Bool
	// superseded is canceled when another process owns the name or the volume; the cause names that process.
	superseded context.Context
	supersede  context.CancelCauseFunc
	once       sync.Once // ensures that end does its work only once
	cancel     context.CancelFunc
	ctx        context.Context // is canceled to stop the background goroutines
	wait       sync.WaitGroup  // for the background goroutines

	problems  *problems.List
	answersAt atomic.Pointer[time.Time] // when the volume began to respond after a silence; nil if it never was silent
	compactor *care.Compactor
	views     *views.Set
	peers     *peers
	archive   *archive.Server // nil until the shard serves gRPC
	repairer  *care.Repairer
}

// Start opens the volume, begins to serve gRPC and registers with etcd. In the background, the shard then loads
// groups in parallel and follows its targets. While a group loads, calls to it fail with the code UNAVAILABLE and the
// reason GROUP_LOADING. ctx bounds only the start itself.
func Start(ctx context.Context, cfg Config) (*Shard, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("shard %s: %w", cfg.Name, err)
	}
	s := newShard(cfg)
	if err := s.start(ctx); err != nil {
		return nil, fmt.Errorf("shard %s: %w", cfg.Name, errors.Join(err, s.end(context.Background(), false)))
	}
	return s, nil
}

func newShard(cfg Config) *Shard {
	s := &Shard{
		cfg:    cfg,
		id:     cfg.identity(),
		logger: cfg.Logger.With("shard", cfg.Name),
		boot:   uuid.New(),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.superseded, s.supersede = context.WithCancelCause(context.Background())
	s.problems = problems.New(s.logger)
	s.lookups = lookups{
		ask: func(name string) (placement.View, error) {
			ctx, cancel := context.WithTimeout(s.ctx, lookupTime)
			defer cancel()
			view, err := cfg.Placement.Look(ctx, name)
			if err == nil && view.Meta.StoreUUID != s.volume.Store {
				err = errors.New("etcd does not hold this store")
			}
			return view, err
		},
		begin: s.wait.Go,
	}
	s.replicas = s.newReplicas()
	s.slow.routes = s.replicas.Routes
	s.metrics = newMetrics(s)
	s.cfg.FS = vfs.NewTimed(s.cfg.FS, s.metrics.synced)
	s.id.FS = s.cfg.FS
	s.volume = s.cfg.newDisk(s.logger)
	s.watcher = s.newWatcher()
	s.views = views.New(cfg.Placement, s.replicas.IsHeld, s.holdViews)
	s.compactor = care.New(care.Options{
		Compaction: cfg.Compaction, Context: s.ctx, Replicas: s.replicas, Disk: s.volume, Etcd: cfg.Placement, Views: s.views,
		Problems: s.problems, Logger: s.logger, TrashDelay: cfg.TrashDelay, ScanTTL: serve.ScanTTL,
		WeightsFresh: cfg.ReportInterval, Freed: func() { s.committer.SpaceFreed() },
	})
	s.peers = newPeers(s)
	s.quotas = s.newQuotas()
	s.loading = load.New(load.Options{
		Replicas: s.replicas, Disk: s.volume, Peers: s.peers, Quotas: s.quotas, Logger: s.logger,
		Node: func() replica.Options {
			return replica.Options{
				Committer: s.committer, InFlightBytesMax: cfg.Limits.ReplicaBytesInFlightMax, Quiet: true, Lease: !cfg.NoReadLease,
				NoSpace: func() { s.compactor.AskForSpace(0) }, Probe: cfg.probe, Off: cfg.off,
			}
		},
		Health: s.setHealth, TailFound: s.metrics.tails.WithLabelValues(tailFound), Stopping: s.stopping.Load,
	})
	s.installer = newInstaller(s)
	s.steerer = lead.New(lead.Options{
		Replicas: s.replicas, Etcd: cfg.Placement, Problems: s.problems, Logger: s.logger,
		VolumeSilent: func() bool { return s.problems.Of(host.VolumeSilent) != nil },
		IsSilent:     s.peers.isSilent, MustNotLead: s.peers.mustNotLead, Withdraw: s.installer.withdraw,
		WriteReplicaFile: s.volume.WriteReplicaFile,
	})
	s.repairer = care.NewRepairer(care.RepairOptions{
		Replicas: s.replicas, Problems: s.problems, Logger: s.logger, Every: cfg.repairEvery, ScrubPause: cfg.scrubPause,
		ScrubBytesPerSecond: cfg.scrubBytesPerSecond,
		Fetcher:             func(shard string) *peer.Fetcher { return s.peers.hub.Fetcher(shard) },
		FetchBlob:           s.peers.fetchBlob,
	})
	s.calls = s.newCalls()
	return s
}

// start performs the steps of Start in order. After an error, end closes what was opened.
func (s *Shard) start(ctx context.Context) error {
	var err error
	if s.server = s.cfg.server; s.server == nil {
		options := s.cfg.serverOptions()
		if s.server, err = host.Listen(ctx, &options); err != nil {
			return err
		}
	}
	if s.id.Address == "" {
		s.id.Address = s.server.Addr()
	}
	if s.meta, err = s.cfg.Placement.Meta(ctx); err != nil {
		return fmt.Errorf("asking etcd for the store: %w", err)
	}
	if err := s.openVolume(ctx); err != nil {
		return err
	}
	s.committer = replica.NewCommitter()
	if err := s.findGroups(); err != nil {
		return err
	}
	s.peers.hub = s.newHub()
	s.archive = s.newArchive()
	services := host.Services{Calls: s.calls, Admin: forAdmin{s}, Peers: s.peers.hub, Archive: s.archive,
		Views: viewCopies{s: s}}
	s.server.Serve(services, func(err error) {
		s.problems.Note("serving gRPC", err)
	})
	if err := s.metrics.register(); err != nil {
		return err
	}
	err = s.register(ctx)
	if s.isRolledBack(err) {
		// The volume gets a new identity. This is safe because none of its replicas has served yet, so a replica that voted
		// under the old identity cannot vote a second time.
		if err := s.volume.Renew(); err != nil {
			return err
		}
		if err := s.findGroups(); err != nil {
			return err
		}
		err = s.register(ctx)
	}
	return err
}

// register registers the shard in etcd and begins to follow etcd.
func (s *Shard) register(ctx context.Context) error {
	if err := s.watcher.Start(ctx); err != nil {
		return err
	}
	space, _, err := s.volume.Space()
	if err != nil {
		return err
	}
	// ctx bounds only the first attempt to register. The registration lasts until the shard stops.
	registration, cancel := context.WithCancel(s.ctx)
	release := context.AfterFunc(ctx, cancel)
	known := s.id.Registration(s.volume.Superblock())
	known.Boot, known.CapacityBytes = s.boot, space.TotalBytes
	unregister, err := s.cfg.Placement.RegisterShard(registration, known, s.yield)
	if err == nil && !release() {
		unregister()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return err
	}
	s.wait.Go(func() {
		<-s.ctx.Done()
		unregister()
		cancel()
	})
	s.care(known)
	return nil
}

// care starts the background goroutines, which run until the shard stops. The shard's registration is passed as
// known.
func (s *Shard) care(known placement.Shard) {
	reporter := &reporter{cfg: &s.cfg, routes: s.replicas.Routes, isHeld: s.replicas.IsHeld,
		expireScans: s.calls.ExpireScans, problems: s.problems, holds: s.compactor.History}
	for _, task := range []func(ctx context.Context){
		s.loading.Run, // finishes when everything that was on the volume is loaded
		s.watcher.Run,
		s.installer.run,         // installs replicas that are too far behind
		s.steerer.Run,           // moves the groups that this shard leads
		s.steerer.LeaveSilent,   // transfers the leadership while the volume does not respond
		reporter.run,            // reports the sizes of groups to etcd
		s.watcher.LeaveSafeMode, // ends a freeze, which begins when etcd was found to be rolled back
		// stepAll raises the volume's step number, both in the superblock and in etcd. An older copy of the disk has a
		// lower step number than etcd, and is recognized by that.
		func(ctx context.Context) { s.stepAll(ctx, known) },
		s.views.Run,
		s.compactor.Run,
		s.compactor.Trash.Run,
		s.repairer.Run,
		s.repairer.Scrub,
		s.followTenants,
		func(ctx context.Context) {
			s.quotas.Run(ctx, func(err error) { s.problems.Note("quotas of tenants", err) })
		},
	} {
		s.wait.Go(func() { task(s.ctx) })
	}
}

// yield records that another process took the shard's place while this one was silent. The host then stops the shard.
func (s *Shard) yield(err error) {
	s.problems.Note("the registration in etcd", err)
	s.supersede(err)
}

// Addr returns the address on which gRPC listens.
func (s *Shard) Addr() string { return s.server.Addr() }

// Loaded returns a channel that is closed when everything that can be loaded is loaded.
func (s *Shard) Loaded() <-chan struct{} { return s.loading.Done }

// Stop stops the shard gracefully: it refuses new calls, waits for calls in progress, syncs, writes hints and
// unregisters. If ctx is done first, calls in progress are aborted, and no hints are written.
func (s *Shard) Stop(ctx context.Context) error {
	s.steerer.HandOver(ctx)
	return s.end(ctx, true)
}

// Kill stops the shard immediately, as SIGKILL would: calls are aborted, and no hint is written. Acknowledged writes
// are on disk. The folder can be opened again when Kill returns.
func (s *Shard) Kill() {
	if err := s.end(context.Background(), false); err != nil {
		s.logger.Warn("killed", "error", err)
	}
}

// end closes everything once, in the reverse order of start.
func (s *Shard) end(ctx context.Context, gracefully bool) (err error) {
	s.once.Do(func() {
		s.stopping.Store(true)
		s.calls.Stop()
		s.quotas.Close()
		switch {
		case s.server == nil:
		case gracefully:
			s.server.Drain(ctx, s.calls.Calls)
		case s.cfg.server != nil:
			s.server.Leave() // the server belongs to the host, which keeps running
		default:
			s.server.Stop()
		}
		s.cancel()
		s.calls.Wait()
		s.wait.Wait() // this also waits for groups that are still loading
		err = errors.Join(err, s.closeGroups(ctx, gracefully))
		if s.peers.hub != nil {
			s.peers.hub.Close()
		}
		s.metrics.unregister()
		if s.committer != nil {
			s.committer.Close()
		}
		err = errors.Join(err, s.volume.Close())
	})
	return err
}

// closeGroups closes all groups in parallel. If hints is true, it also writes the groups' hints, but only until ctx
// is done.
func (s *Shard) closeGroups(ctx context.Context, hints bool) error {
	if !hints {
		over, cancel := context.WithCancel(ctx)
		cancel()
		ctx = over
	}
	var (
		mu   sync.Mutex
		errs []error
	)
	parallel.Each(slices.Values(s.replicas.All()), 16, func(g *replicas.Replica) {
		s.setHealth(g, false)
		err := g.Close(ctx, hints)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			s.logger.Info("the hint of the active segment was not written: the next start reads more of it", "group", g.Name,
				"error", err)
		default:
			mu.Lock()
			errs = append(errs, fmt.Errorf("group %s: %w", g.Name, err))
			mu.Unlock()
		}
	})
	return errors.Join(errs...)
}
