package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// leaseSeconds is the time after which a shard that went silent is taken for gone.
const leaseSeconds = 6

// RegisterShard makes a shard known as long as the returned stop is not called: under a lease that is kept alive, and
// made anew after an outage of etcd. It refuses with ErrNameTaken a name under which another volume, or a later
// generation of this one (then this is a clone), is registered live. ctx bounds the first registration and, when it
// ends later, ends the registration like stop. stop takes the shard out of etcd (within a second) and may be called
// more than once.
func (s *Store) RegisterShard(ctx context.Context, shard Shard) (stop func(), err error) {
	if err := validateShard(shard); err != nil {
		return nil, err
	}
	lease, err := s.registerOnce(ctx, shard)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.keepRegistered(ctx, shard, lease)
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-done
	}), nil
}

func validateShard(shard Shard) error {
	if err := ValidateShardName(shard.Name); err != nil {
		return err
	}
	if shard.VolumeUUID == uuid.Nil {
		return fmt.Errorf("shard %s: the volume UUID is zero", shard.Name)
	}
	if _, _, err := net.SplitHostPort(shard.Address); err != nil {
		return fmt.Errorf("shard %s: address %q: give host:port: %w", shard.Name, shard.Address, err)
	}
	if err := shard.State.validate(); err != nil {
		return fmt.Errorf("shard %s: %w", shard.Name, err)
	}
	return nil
}

// registerOnce makes a lease and writes the shard under it.
func (s *Store) registerOnce(ctx context.Context, shard Shard) (clientv3.LeaseID, error) {
	value, err := json.Marshal(shard)
	if err != nil {
		return 0, fmt.Errorf("encode shard %s: %w", shard.Name, err)
	}
	granted, err := s.client.Grant(ctx, leaseSeconds)
	if err != nil {
		return 0, fmt.Errorf("register shard %s in etcd: %w", shard.Name, err)
	}
	key := s.prefix + shardsKey + shard.Name
	for {
		answer, err := s.client.Get(ctx, key)
		if err != nil {
			return 0, fmt.Errorf("register shard %s in etcd: %w", shard.Name, err)
		}
		revision := int64(0)
		if len(answer.Kvs) > 0 {
			revision = answer.Kvs[0].ModRevision
			if err := mayReplace(answer.Kvs[0].Value, shard); err != nil {
				s.revoke(granted.ID)
				return 0, err
			}
		}
		put, err := s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
			Then(clientv3.OpPut(key, string(value), clientv3.WithLease(granted.ID))).Commit()
		if err != nil {
			return 0, fmt.Errorf("register shard %s in etcd: %w", shard.Name, err)
		}
		if put.Succeeded {
			return granted.ID, nil
		}
	}
}

// mayReplace says whether a shard may take the place of what is registered under its name.
func mayReplace(value []byte, shard Shard) error {
	var there Shard
	if err := json.Unmarshal(value, &there); err != nil {
		return fmt.Errorf("shard %s is registered with a value that cannot be read: %w", shard.Name, err)
	}
	if there.VolumeUUID != shard.VolumeUUID {
		return fmt.Errorf("%w: shard %s at %s is live on volume %s, this one has volume %s: stop one of them, or give another name",
			ErrNameTaken, shard.Name, there.Address, there.VolumeUUID, shard.VolumeUUID)
	}
	if there.Generation > shard.Generation || there.Generation == shard.Generation && there.Address != shard.Address {
		return fmt.Errorf("%w: shard %s at %s is live on generation %d of volume %s, this one has generation %d: the volume was cloned or rolled back",
			ErrNameTaken, shard.Name, there.Address, there.Generation, there.VolumeUUID, shard.Generation)
	}
	return nil
}

// keepRegistered keeps the lease alive, and registers again when it is lost, until ctx ends.
func (s *Store) keepRegistered(ctx context.Context, shard Shard, lease clientv3.LeaseID) {
	delay := retryFirst
	for {
		if lease != 0 {
			s.keepAlive(ctx, lease)
			delay = retryFirst
		}
		if ctx.Err() != nil {
			s.revoke(lease)
			return
		}
		var err error
		attempt, cancel := context.WithTimeout(ctx, leaseSeconds*time.Second)
		lease, err = s.registerOnce(attempt, shard)
		cancel()
		if err == nil {
			slog.Info("registered again", "shard", shard.Name)
			continue
		}
		if errors.Is(err, ErrNameTaken) && delay == retryFirst {
			slog.Error("cannot register again", "shard", shard.Name, "error", err)
		}
		sleep(ctx, delay)
		delay = min(2*delay, retryMax)
	}
}

// keepAlive returns when the lease is lost or ctx ends. The client renews it while the answers are taken.
func (s *Store) keepAlive(ctx context.Context, lease clientv3.LeaseID) {
	answers, err := s.client.KeepAlive(ctx, lease)
	if err != nil {
		return
	}
	for range answers {
	}
}

// revoke gives a lease back, so that what hangs on it goes at once; where that fails, it expires by itself.
func (s *Store) revoke(lease clientv3.LeaseID) {
	if lease == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = s.client.Revoke(ctx, lease)
}
