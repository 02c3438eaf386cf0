package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/placement"
)

// leaseSeconds is the time after which a shard that stops renewing its lease is no longer registered.
const leaseSeconds = 6

// RegisterShard registers a shard until the function stop, which it returns, is called. It keeps the lease of the
// registration alive, and replaces it with a new one after an outage of etcd.
//
// RegisterShard returns ErrNameTaken in three cases. First, another live process is registered under this name with a
// different volume, or with the same or a later generation of this volume. Second, another live process is registered
// under this name with an earlier generation of this volume and a different address, because one of the two volumes
// must be a clone. Third, the volume is in use by a live process with another name. RegisterShard returns
// ErrRolledBack if the volume is not a successor of every state that was ever registered for it (see MayFollow).
//
// ctx limits the time of the first registration. If ctx is done later, the registration ends as if stop() had been
// called. stop() removes the shard from etcd (within a second), and may be called several times. If the lease has
// expired and the shard cannot be registered again because another process now has its name or volume, refused() is
// called once. The shard must then stop serving. If etcd merely does not respond, refused() is not called. stop()
// waits until refused() has returned.
func (s *Store) RegisterShard(ctx context.Context, shard placement.Shard, refused ...func(error)) (
	stop func(), err error) {
	r, err := s.registration(shard)
	if err != nil {
		return nil, err
	}
	if r.shard.Boot == uuid.Nil {
		r.shard.Boot = uuid.New()
	}
	lease, err := r.first(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.steps.Delete(r.shard.Boot)
		if err := r.keep(ctx, lease); err != nil {
			s.logger.Error("cannot register again", "shard", shard.Name, "error", err)
			for _, tell := range refused {
				tell(err)
			}
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-done
	}), nil
}

// MayRegister reports, with the same errors as RegisterShard, whether a shard could be registered in its next state.
// It also returns the registered step of the volume, or zero if there is none. It writes nothing, neither to etcd nor
// to the volume. A shard calls it before it raises the generation of its volume. If a refused start raised the
// generation of a copied volume, the copy would eventually have a later generation than the original.
func (s *Store) MayRegister(ctx context.Context, shard placement.Shard) (registered placement.Step, err error) {
	r, err := s.registration(shard)
	if err != nil {
		return placement.Step{}, err
	}
	_, registered, err = r.may(ctx)
	if err != nil {
		return placement.Step{}, fmt.Errorf("register shard %s in etcd: %w", shard.Name, err)
	}
	return registered, nil
}

// registration keeps one shard process registered. It is not safe for concurrent use.
type registration struct {
	keys

	shard placement.Shard // the shard, with its last known step
	steps *sync.Map       // the same map as Store.steps
}

// registration validates a shard and prepares its registration.
func (s *Store) registration(shard placement.Shard) (*registration, error) {
	if err := placement.ValidateShardName(shard.Name); err != nil {
		return nil, err
	}
	if err := shard.Validate(); err != nil {
		return nil, fmt.Errorf("shard %s: %w", shard.Name, err)
	}
	return &registration{keys: s.keys, shard: shard, steps: &s.steps}, nil
}

// first makes the first registration. As long as etcd is too slow, it tries again. If an attempt gets no response, it
// may still have written the registration. Such a registration belongs to this process, and does not prevent the next
// attempt.
func (r *registration) first(ctx context.Context) (lease clientv3.LeaseID, err error) {
	err = Patiently(ctx, r.logger, func(ctx context.Context) error {
		lease, err = r.once(ctx)
		return err
	})
	return lease, err
}

// once creates a lease and writes the shard's registration with that lease. The volume's generation is written
// without a lease.
func (r *registration) once(ctx context.Context) (clientv3.LeaseID, error) {
	granted, err := r.client.Grant(ctx, leaseSeconds)
	if err != nil {
		return 0, fmt.Errorf("register shard %s in etcd: %w", r.shard.Name, err)
	}
	for {
		done, err := r.try(ctx, granted.ID)
		if err != nil {
			r.revoke(granted.ID)
			return 0, fmt.Errorf("register shard %s in etcd: %w", r.shard.Name, err)
		}
		if done {
			return granted.ID, nil
		}
	}
}

// may checks whether the shard may be registered. It also returns the registered step of the volume, and conditions
// for the write. The conditions are true as long as the state on which this decision was based has not changed.
func (r *registration) may(ctx context.Context) (conditions []clientv3.Cmp, registered placement.Step, err error) {
	key, volumeKey := shardsKey+r.shard.Name, volumesKey+r.shard.VolumeUUID.String()
	read, err := r.client.Txn(ctx).Then(clientv3.OpGet(r.prefix+key), clientv3.OpGet(r.prefix+volumeKey)).Commit()
	if err != nil {
		return nil, placement.Step{}, err
	}
	there, volume := only(read.Responses[0].GetResponseRange().Kvs), only(read.Responses[1].GetResponseRange().Kvs)
	if there.ModRevision > 0 {
		var other placement.Shard
		if err := json.Unmarshal(there.Value, &other); err != nil {
			return nil, placement.Step{}, fmt.Errorf("%w: %s in etcd, which another process of this shard may have written, "+
				"cannot be read: %w: see that no other process runs under this name, then delete the key", placement.ErrUnusable,
				r.prefix+key, err)
		}
		if err := placement.MayReplace(other, r.shard); err != nil {
			return nil, placement.Step{}, err
		}
		if err := r.gone(ctx, other, clientv3.LeaseID(there.Lease)); err != nil {
			return nil, placement.Step{}, err
		}
	}
	conditions = []clientv3.Cmp{r.at(key, there.ModRevision), r.at(volumeKey, volume.ModRevision)}
	if volume.ModRevision > 0 {
		seen, err := mayFollow(volume.Value, r.shard)
		if err != nil {
			return nil, placement.Step{}, err
		}
		registered = seen.Step
		if seen.Shard != r.shard.Name {
			unchanged, err := r.notLive(ctx, shardsKey+seen.Shard)
			if err != nil {
				return nil, placement.Step{}, err
			}
			conditions = append(conditions, unchanged)
		}
	}
	return conditions, registered, nil
}

// try writes the registration and the record of the volume in one transaction, provided that neither has changed
// since it was read. It returns false if one of them has changed.
func (r *registration) try(ctx context.Context, lease clientv3.LeaseID) (bool, error) {
	if last, stepped := r.steps.Load(r.shard.Boot); stepped {
		r.shard.Step, r.shard.Registered = last.(placement.Shard).Step, last.(placement.Shard).Registered
	}
	conditions, _, err := r.may(ctx)
	if err != nil {
		return false, err
	}
	put, err := r.client.Txn(ctx).If(conditions...).
		Then(r.opPut(shardsKey+r.shard.Name, r.shard, clientv3.WithLease(lease)),
			r.opPut(volumesKey+r.shard.VolumeUUID.String(), r.shard.Record())).Commit()
	return err == nil && put.Succeeded, err
}

// notLive returns an error if the given key is the registration of a live shard with this volume. Otherwise it
// returns the condition that the key has not changed.
func (r *registration) notLive(ctx context.Context, key string) (unchanged clientv3.Cmp, err error) {
	answer, err := r.client.Get(ctx, r.prefix+key)
	if err != nil {
		return unchanged, err
	}
	found := only(answer.Kvs)
	if found.ModRevision > 0 {
		var there placement.Shard
		if err := json.Unmarshal(found.Value, &there); err != nil {
			return unchanged, fmt.Errorf("%w: %s in etcd, where this volume was registered last, cannot be read: %w: see that "+
				"no shard runs under that name, then delete the key", placement.ErrUnusable, r.prefix+key, err)
		}
		if there.VolumeUUID == r.shard.VolumeUUID {
			return unchanged, fmt.Errorf("%w: volume %s is live as shard %s at %s: one of them is a clone, stop it",
				placement.ErrNameTaken, r.shard.VolumeUUID, there.Name, there.Address)
		}
	}
	return r.at(key, found.ModRevision), nil
}

// renewalsOfALivingShard is the number of renewals that prove that the registered process is alive. A single renewal
// proves nothing, because etcd extends all leases when its leader changes.
const renewalsOfALivingShard = 2

// gone waits until another process has stopped. That process is registered under the shard's name, with a different
// address and an earlier generation of this volume. It has stopped if nothing listens at its address, for example
// after a crash, or if its registration has expired. If it keeps renewing its registration, it is alive, and one of
// the two volumes is a copy of the other. The later generation of this volume does not show that this one is the
// original, because a process that starts on a copy also raises the generation.
func (r *registration) gone(ctx context.Context, there placement.Shard, lease clientv3.LeaseID) error {
	shard := r.shard
	if there.Address == shard.Address || there.Generation == shard.Generation {
		return nil
	}
	began, said := time.Now(), false
	for last, renewals := int64(leaseSeconds), 0; ; {
		if refuses(ctx, there.Address) {
			return nil
		}
		left, err := r.client.TimeToLive(ctx, lease)
		if err != nil {
			return err
		}
		if left.TTL <= 0 {
			return nil
		}
		if left.TTL > last {
			renewals++
		}
		if last = left.TTL; renewals >= renewalsOfALivingShard {
			return fmt.Errorf(
				"%w: shard %s at %s is live on generation %d of volume %s, this one has generation %d and is a copy: stop one of "+
					"them",
				placement.ErrNameTaken, shard.Name, there.Address, there.Generation, there.VolumeUUID, shard.Generation)
		}
		waited := time.Since(began)
		if waited > goneMax {
			return fmt.Errorf(
				"the registration of shard %s at %s, on generation %d of volume %s, neither runs out nor is renewed: it has %d s "+
					"left after "+
					"%.0f s: see that etcd is well, or delete its key %s", shard.Name, there.Address, there.Generation,
				there.VolumeUUID, left.TTL,
				waited.Seconds(), r.prefix+shardsKey+shard.Name)
		}
		if waited > goneEvery && !said {
			said = true
			r.logger.Warn("somebody listens at the address of an earlier process of this shard: it is waited until that "+
				"registration has run out",
				"shard", shard.Name, "address", there.Address, "seconds", left.TTL)
		}
		backoff.Sleep(ctx, goneEvery)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// goneEvery is the interval between two checks of a registration. A check recognizes a renewal by the fact that the
// lease's remaining time has grown. etcd reports this time in whole seconds.
const goneEvery = 200 * time.Millisecond

// goneMax limits how long to wait for a registration to expire. If etcd is healthy, that takes leaseSeconds. Tests
// use a shorter limit.
var goneMax = 5 * leaseSeconds * time.Second

// refuses reports whether it is certain that no process listens at the address.
func refuses(ctx context.Context, address string) bool {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(soon, "tcp", address)
	if err == nil {
		_ = conn.Close() // an error is harmless, because nothing was sent
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// keep keeps the lease alive until ctx is done. Whenever the lease is lost, it registers the shard again. It returns
// an error if another process has the shard's name or volume.
func (r *registration) keep(ctx context.Context, lease clientv3.LeaseID) error {
	tries := retries()
	for {
		if lease != 0 {
			r.keepAlive(ctx, lease)
			tries.Again()
		}
		select {
		case <-ctx.Done():
			r.revoke(lease)
			return nil
		default:
		}
		var err error
		attempt, cancel := context.WithTimeout(ctx, leaseSeconds*time.Second)
		lease, err = r.once(attempt)
		cancel()
		if err == nil {
			r.logger.Info("registered again", "shard", r.shard.Name)
			continue
		}
		if errors.Is(err, placement.ErrNameTaken) || errors.Is(err, placement.ErrRolledBack) {
			return err
		}
		tries.Wait(ctx)
	}
}

// mayFollow is like placement.MayFollow, but takes the value of the volume's key in etcd. It also returns the decoded
// record.
func mayFollow(value []byte, shard placement.Shard) (seen placement.VolumeRecord, err error) {
	err = json.Unmarshal(value, &seen)
	if err == nil && (seen.Volume != shard.VolumeUUID || max(seen.Generation, seen.Step.Number) > placement.NumberMax) {
		err = fmt.Errorf("it is of volume %s, generation %d, step %d", seen.Volume, seen.Generation, seen.Step.Number)
	}
	// The error is not ErrRolledBack, because a record that cannot be read does not show that the volume was rolled
	// back.
	if err != nil {
		return seen, fmt.Errorf("%w: key %s%s in etcd, which says in which state the volume was last, cannot be read: %w: "+
			"see that the volume was not set back and is no copy, then delete the key", placement.ErrUnusable, volumesKey,
			shard.VolumeUUID, err)
	}
	return seen, placement.MayFollow(seen, shard)
}

// NextStep records in etcd that the volume of a registered shard has moved on to its next step. It returns
// ErrRolledBack if another process has registered the volume since then. The shard must then stop serving. After any
// other error, the caller must report the same step again.
func (s *Store) NextStep(ctx context.Context, shard placement.Shard) error {
	s.steps.Store(shard.Boot, shard) // the step is already on disk, so even a new registration must report it
	key := volumesKey + shard.VolumeUUID.String()
	for {
		there, err := s.get(ctx, key)
		if err != nil {
			return err
		}
		if there.ModRevision > 0 {
			if _, err := mayFollow(there.Value, shard); err != nil {
				return err
			}
		}
		done, err := s.replace(ctx, key, encode(shard.Record()), s.at(key, there.ModRevision))
		if err != nil {
			return fmt.Errorf("write %s in etcd: %w", s.prefix+key, err)
		}
		if done {
			return nil
		}
	}
}
