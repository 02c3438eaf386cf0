package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/security/ratelimit"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// StartHost starts a Host, which runs a shard as long as its volume may be served, and otherwise reports the reason.
// StartHost returns an error if the configuration is invalid, or if an address is in use.
func StartHost(ctx context.Context, cfg Config) (*host.Host, error) {
	cfg.setDefaults()
	err := cfg.validate()
	var h *host.Host
	if err == nil {
		h, err = host.Start(ctx, host.Options{
			Identity: cfg.identity(), Server: cfg.serverOptions(), Stay: cfg.Stay, Row: cfg.row, Registry: cfg.Registry,
			Logger: cfg.Logger,
			Times:  cfg.times,
			Start: func(ctx context.Context, id host.Identity, server *host.Server) (host.Shard, error) {
				cfg := cfg
				cfg.Wanted, cfg.server = id.Wanted, server
				s, err := Start(ctx, cfg)
				if err != nil {
					return nil, err
				}
				return forHost{s}, nil
			},
		})
	}
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", cfg.Name, err)
	}
	return h, nil
}

// identity returns the part of the shard's identity that comes from its configuration.
func (c *Config) identity() host.Identity {
	return host.Identity{
		Name: c.Name, Address: c.Advertise, Domain: c.Domain, Node: c.Node, Zone: c.Zone, FS: c.FS, Dir: c.Dir,
		Wanted: c.Wanted, Placement: c.Placement,
	}
}

func (c *Config) serverOptions() host.ServerOptions {
	extra := c.ServerOptions
	if !c.watched {
		floods := ratelimit.New(ratelimit.Config{MessagesOnly: true, HeldBytesMax: c.Limits.unfinishedMax(),
			Logger: c.Logger})
		if c.Registry != nil {
			for _, of := range floods.Collectors() {
				_ = c.Registry.Register(of) // fails if another shard of this process has registered these metrics
			}
		}
		extra = slices.Concat(guard.Plaintext(),
			[]grpc.ServerOption{grpc.Creds(floods.Credentials(insecure.NewCredentials()))}, extra)
	}
	return host.ServerOptions{
		Listen: c.Listen, ListenConfig: c.ListenConfig, Listener: c.Listener, Extra: extra,
	}
}

// dials returns the gRPC options for connections to other shards.
func (c *Config) dials() []grpc.DialOption {
	if c.Dial == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithContextDialer(c.Dial)}
}

// row returns the row of this shard, with only those values that are known from its configuration.
func (c *Config) row() *recordv1.Shard {
	return &recordv1.Shard{
		Alive: true, Version: c.Version, Residency: c.Residency.String(), Medium: string(c.Medium),
		MemoryLimitBytes: c.MemoryLimitBytes,
	}
}

// forHost implements host.Shard for a Shard.
type forHost struct{ *Shard }

func (f forHost) State() (recordv1.ShardState, string) { return f.loading.State() }

func (f forHost) Load() *recordv1.Load { return f.loading.Status() }

func (f forHost) Superblock() volume.Superblock { return f.volume.Superblock() }

func (f forHost) Problem(what string, err error) {
	if what == host.VolumeSilent && err == nil && f.problems.Of(what) != nil {
		f.answersAt.Store(new(time.Now()))
	}
	f.problems.Note(what, err)
}

// leadAgain is how long a volume must have responded after a silence before its shard may become leader of groups
// again. Without this pause, a disk that hangs now and then would cause many leadership transfers.
const leadAgain = 30 * time.Second

// mustNotLead reports whether other shards must not transfer the leadership of groups to this shard. A leader must
// not be on a silent volume, because reads wait for its disk while its heartbeats prevent an election.
func (s *Shard) mustNotLead() bool {
	if s.problems.Of(host.VolumeSilent) != nil {
		return true
	}
	since := s.answersAt.Load()
	return since != nil && time.Since(*since) < leadAgain
}

func (f forHost) Superseded() <-chan struct{} { return f.superseded.Done() }

func (f forHost) Successor() error { return context.Cause(f.superseded) }

func (f forHost) Ready() error {
	if f.stopping.Load() {
		return answer.Stopping()
	}
	if err := f.problems.Of(host.VolumeSilent); err != nil {
		return fmt.Errorf("%s: %w", host.VolumeSilent, err)
	}
	state, message := f.loading.State()
	switch state {
	case recordv1.ShardState_SHARD_STATE_LOADING, recordv1.ShardState_SHARD_STATE_SERVING,
		recordv1.ShardState_SHARD_STATE_DRAINING:
	default:
		return fmt.Errorf("%s: %s", state.Word(), message)
	}
	if slices.ContainsFunc(f.replicas.All(), func(g *replicas.Replica) bool { return g.Served() != nil }) {
		return nil
	}
	if len(f.replicas.Groups()) > 0 || state == recordv1.ShardState_SHARD_STATE_LOADING {
		return errors.New("no group serves yet: /status says why")
	}
	return nil
}

// setHealth sets the health of one group in the health service, under the name "group/NAME".
func (s *Shard) setHealth(g *replicas.Replica, serving bool) {
	if s.server != nil { // nil until start has run
		s.server.SetHealth("group/"+g.Name, serving)
	}
}
