package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/etcdserver"
)

// benchStore is a store whose shards run as separate processes. etcd runs in this process, and so does the gateway,
// from which the client gets the routing. There is no planner, because the benchmark sets the targets itself.
type benchStore struct {
	dir     string
	binary  string
	groups  int
	etcd    *etcdserver.Server
	client  *clientv3.Client
	place   *registry.Store
	gateway *gateway.Gateway
	records *client.Client // calls the shards directly
	shards  map[string]*drive.Process
}

// startChild starts a process that is killed if this one exits.
func startChild(binary string, args ...string) (*drive.Process, error) {
	return drive.Start(exec.Command(binary, args...), syscall.SIGKILL) //nolint:gosec,noctx // our own binary; Kill ends it
}

// startStore starts a store with the given number of shards, and waits until every copy of each group exists and the
// leaders are spread. Each shard is started with the given flags.
func startStore(ctx context.Context, dir, binary string, shards, copies, groups int, flags ...string) (s *benchStore,
	err error) {
	if s, err = newStore(dir, binary, groups); err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	meta, err := s.place.InitMeta(ctx, placement.Meta{
		StoreUUID: uuid.New(), Routing: placement.Routing{Mode: placement.Hash, Groups: groups}, Copies: copies,
		CreatedUTC: time.Now().UTC().Format(time.RFC3339), ShardsMin: shards,
	})
	if err != nil {
		return s, err
	}
	if s.gateway, err = gateway.Start(ctx, gateway.Config{Listen: "127.0.0.1:0", Store: s.place}); err != nil {
		return s, err
	}
	for i := range shards {
		if err := s.start(strconv.Itoa(i+1), flags...); err != nil {
			return s, err
		}
	}
	if err := s.awaitPlacement(ctx, meta, shards); err != nil {
		return s, err
	}
	s.records, err = client.Dial(ctx, client.Config{Addresses: []string{s.gateway.Addr()}, Direct: true,
		CallTimeout: time.Minute})
	return s, err
}

// newStore starts the etcd of a store. The store has no properties and no processes yet.
func newStore(dir, binary string, groups int) (s *benchStore, err error) {
	s = &benchStore{dir: dir, binary: binary, groups: groups, shards: map[string]*drive.Process{}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.etcd, err = etcdserver.Start(filepath.Join(dir, "etcd")); err != nil {
		return s, err
	}
	if s.client, err = s.etcd.Client(); err != nil {
		return s, err
	}
	s.place, err = registry.NewStore(s.client, "bench", nil)
	return s, err
}

// start starts a shard. Each start uses a new address.
func (s *benchStore) start(name string, flags ...string) error {
	args := append([]string{
		"shard", "--name", name, "--dir", filepath.Join(s.dir, "shard-"+name), "--etcd",
		strings.Join(s.etcd.Endpoints(), ","), "--store", "bench",
		"--listen", "127.0.0.1:0", "--http", "", "--log-level", "warn",
	}, flags...)
	if err := os.MkdirAll(filepath.Join(s.dir, "shard-"+name), 0o755); err != nil {
		return err
	}
	c, err := startChild(s.binary, args...)
	if err == nil {
		s.shards[name] = c
	}
	return err
}

// awaitPlacement computes the placement once all shards are registered. Then it waits until each group is on the shards
// that its target names.
func (s *benchStore) awaitPlacement(ctx context.Context, meta placement.Meta, shards int) error {
	if err := s.awaitTargets(ctx, meta, shards); err != nil {
		return err
	}
	return s.awaitSettled(ctx)
}

// awaitTargets computes the placement once all shards are registered.
func (s *benchStore) awaitTargets(ctx context.Context, meta placement.Meta, shards int) error {
	return drive.Eventually(ctx, "groups are placed", func() error {
		view, err := s.place.View(ctx)
		if err != nil {
			return err
		}
		if len(view.Shards) < shards {
			return errors.Join(fmt.Errorf("%d of %d shards are registered", len(view.Shards), shards), s.exitedError())
		}
		if len(view.Targets) == s.groups {
			return nil
		}
		policy := meta.Policy()
		policy.Moves = false
		_, err = s.place.PlanOnce(ctx, meta.StoreUUID, policy)
		return errors.Join(err, errors.New("not all groups have targets"))
	})
}

// exitedError returns an error that names the shards that have exited, with their last output. It returns nil if all
// shards run.
func (s *benchStore) exitedError() error {
	errs := make([]error, 0, len(s.shards))
	for _, p := range s.shards {
		errs = append(errs, p.Err())
	}
	return errors.Join(errs...)
}

// awaitSettled waits until each group is on the shards of its target.
func (s *benchStore) awaitSettled(ctx context.Context) error {
	views, stop := context.WithCancel(ctx)
	defer stop()
	end := time.After(5 * time.Minute)
	watch := s.place.Watch(views)
	why := "nothing was heard of etcd"
	for {
		select {
		case view := <-watch:
			if why = s.unstable(view); why == "" {
				return nil
			}
		case <-end:
			return fmt.Errorf("not within 5 minutes: %s", why)
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.exitedError(); err != nil {
			return err
		}
	}
}

func (s *benchStore) unstable(view placement.View) string {
	for name, target := range view.Targets {
		g := view.Groups[name]
		if g.Leader != target.Shards[0] || len(g.Members) != len(target.Shards) {
			return fmt.Sprintf("group %s is led by %q, has %d members, and is to be on %v", name, g.Leader, len(g.Members),
				target.Shards)
		}
		for _, m := range g.Members {
			if m.Role != placement.Voter || !slices.Contains(target.Shards, m.Shard) {
				return fmt.Sprintf("group %s: %+v", name, m)
			}
		}
	}
	if len(view.Targets) != s.groups {
		return fmt.Sprintf("%d of %d groups", len(view.Targets), s.groups)
	}
	return ""
}

func (s *benchStore) close() {
	if s.records != nil {
		_ = s.records.Close() // an error does not matter, because no call is in progress
	}
	for _, c := range s.shards {
		c.Kill()
	}
	if s.gateway != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.gateway.Stop(ended) // Stop returns immediately with an error, because the context has expired
	}
	if s.client != nil {
		_ = s.client.Close()
	}
	if s.etcd != nil {
		s.etcd.Close()
	}
	// An error does not matter, because the benchmark removes the parent folder later and reports errors then.
	_ = os.RemoveAll(s.dir)
}

// put stores a record with the Go client, which calls the shards directly.
func (s *benchStore) put(ctx context.Context, id int64, data []byte) error {
	_, err := s.records.Put(ctx, client.Key{ID: id}, data, nil)
	return err
}

func (s *benchStore) get(ctx context.Context, id int64, size int) error {
	r, err := s.records.Get(ctx, client.Key{ID: id}, nil)
	if err == nil && len(r.Data) != size {
		return fmt.Errorf("record %d has %d bytes, not %d", id, len(r.Data), size)
	}
	return err
}

// fill stores the given number of records. Their ids begin at 0.
func (s *benchStore) fill(ctx context.Context, records int64, size int) error {
	data := randomBytes(size)
	const batch = 64
	return drive.Shared(8, (records+batch-1)/batch, func(_ int, i int64) error {
		items := make([]client.PutItem, 0, batch)
		for id := i * batch; id < min((i+1)*batch, records); id++ {
			items = append(items, client.PutItem{Key: client.Key{ID: id}, Data: data})
		}
		for _, outcome := range s.records.BatchPut(ctx, items) {
			if outcome.Err != nil {
				return fmt.Errorf("filling: %w", outcome.Err)
			}
		}
		return nil
	})
}
