package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/status/finding"
)

// setState writes the wanted state of the shard to etcd, as the operator would.
func (n *nemesis) setState(victim *server, state placement.ShardState) error {
	cfg := clientv3.Config{DialOptions: n.dialOptions(), DialTimeout: 5 * time.Second}
	for _, e := range n.etcds {
		cfg.Endpoints = append(cfg.Endpoints, "http://"+e.machine.address+":2379")
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	store, err := registry.NewStore(client, storeName, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	meta, err := store.Meta(ctx)
	if err != nil {
		return err
	}
	return store.SetShardState(ctx, meta.StoreUUID, victim.name, state)
}

// drain moves all groups off a shard and back, while other shards are paused and killed.
func (n *nemesis) drain(victim *server) (words string, err error) {
	all, err := n.survey()
	if err != nil {
		return "", err
	}
	held := groupsOn(all, victim)
	at := time.Now()
	if err := n.setState(victim, placement.Draining); err != nil {
		return "", err
	}
	drained := false
	if err := n.expectFinding(at, "shard "+victim.name, finding.ShardDraining, finding.DrainWaits,
		finding.ShardDrained); err != nil {
		return "", errors.Join(err, n.setState(victim, placement.Active))
	}
	defer func() {
		if !drained {
			err = errors.Join(err, n.setState(victim, placement.Active))
		}
	}()
	paused, killed := n.otherShard(victim), n.otherShard(victim)
	if _, err := n.pause(paused); err != nil {
		return "", fmt.Errorf("while it is drained, pause of %s: %w", paused.name, err)
	}
	if _, err := n.kill(killed); err != nil {
		return "", fmt.Errorf("while it is drained, kill of %s: %w", killed.name, err)
	}
	if err := await("nothing is left on shard "+victim.name, 3*time.Minute, func() error {
		all, err := n.survey()
		if left := groupsOn(all, victim); err == nil && len(left) > 0 {
			err = fmt.Errorf("it has groups %v", left)
		}
		return err
	}); err != nil {
		return "", err
	}
	took := time.Since(at)
	drained = true
	if err := n.setState(victim, placement.Active); err != nil {
		return "", err
	}
	if err := await("groups come back to shard "+victim.name, 3*time.Minute, func() error {
		all, err := n.survey()
		if err == nil && len(groupsOn(all, victim)) == 0 {
			err = errors.New("it has none")
		}
		return err
	}); err != nil {
		return "", err
	}
	again := n.otherShard(victim)
	if _, err := n.pause(again); err != nil {
		return "", fmt.Errorf("while groups come back, pause of %s: %w", again.name, err)
	}
	return fmt.Sprintf("%d groups left it in %.1f s while %s was paused and %s killed, and came back while %s was paused",
		len(held), took.Seconds(),
		paused.name, killed.name, again.name), await("the moves are over", 3*time.Minute, n.noMoves)
}

// groupsOn returns the groups that have a copy on a shard.
func groupsOn(all map[string][]replica, h *server) (groups []string) {
	for name, replicas := range all {
		if slices.ContainsFunc(replicas, func(r replica) bool { return r.shard == h }) {
			groups = append(groups, name)
		}
	}
	slices.Sort(groups)
	return groups
}

// otherShard returns a random shard other than the given one.
func (n *nemesis) otherShard(but *server) *server {
	for {
		if h := n.shards[n.random.IntN(len(n.shards))]; h != but {
			return h
		}
	}
}

// failDisk makes all requests to a disk fail with EIO for a while. After the first error the file system refuses
// everything until it is mounted again, so the shard is restarted.
func (n *nemesis) failDisk(victim *server) (words string, err error) {
	disk := victim.machine.slow
	groups, err := n.awaitLeading(victim)
	if err != nil {
		return "", err
	}
	defer disk.set("off")
	at := time.Now()
	disk.set("error")
	var failed error
	if err := await("the disk fails", time.Minute, func() error {
		if _, failed = disk.probe(64 << 10); !errors.Is(failed, syscall.EIO) && !errors.Is(failed, syscall.EROFS) {
			return fmt.Errorf("a write and sync: %w", failed)
		}
		return nil
	}); err != nil {
		return "", err
	}
	if err := n.awaitOtherLeaders(groups, victim); err != nil {
		return "", err
	}
	if err := n.expectFinding(at, "shard "+victim.name, finding.ShardSilent, finding.ShardState, finding.ShardProblem,
		finding.GroupReadOnly, finding.GroupFailed); err != nil {
		return "", err
	}
	time.Sleep(time.Until(at.Add(holdMin))) // the fault must last for at least this time
	length := time.Since(at)
	alive := victim.alive()
	disk.set("off")
	victim.kill()
	if err := await("the disk answers", time.Minute, disk.mountAgain); err != nil {
		return "", err
	}
	if err := victim.start(); err != nil {
		return "", err
	}
	return fmt.Sprintf(
		"EIO for %.1f s (%v), others led its %d groups, its process was there: %v; started on the disk as it was left",
		length.Seconds(), failed,
		len(groups), alive), await("shard "+victim.name, 2*time.Minute, victim.ready)
}
