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

// leaseSeconds is the time after which a shard that does not renew its lease is no longer registered.
const leaseSeconds = 6

// RegisterShard registers a shard until the returned function stop is called. The registration has a lease that is kept
// alive, and replaced with a new lease after an etcd outage.
//
// RegisterShard returns ErrNameTaken if another live process is registered under this name with another volume, or with
// the same or a later generation of this volume. It also returns ErrNameTaken if that process has an earlier generation
// of this volume at another address, because this volume is then a clone, and if the volume is live under another name.
// It returns ErrRolledBack if the volume is not a successor of every state that was ever registered for it (see
// MayFollow).
//
// ctx bounds the first registration. If ctx is done later, the registration ends as if stop() were called. stop()
// removes the shard from etcd (within a second) and may be called more than once. refused() is called once if the shard
// cannot be registered again after its lease ran out, because another process now has its name or volume. The shard
// must then stop serving. refused() is not called if etcd merely does not respond. stop() waits until refused() has
// returned.
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

// MayRegister reports, like RegisterShard, whether a shard may be registered in its next state. It also returns the
// volume's registered step, or zero if no step is registered. It writes nothing to etcd or to the volume. If each
// refusal raised the generation of a copied volume, the copy would eventually have a later generation than its
// original.
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

// registration is the registration of one shard process. Not safe for concurrent use.
type registration struct {
	keys

	shard placement.Shard // with the last known step
	steps *sync.Map       // the field steps of the Store
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

// first calls once, and repeats the call while etcd is too slow. An attempt without a response may have written the
// registration, which then belongs to this process and does not block the next attempt.
func (r *registration) first(ctx context.Context) (lease clientv3.LeaseID, err error) {
	err = Patiently(ctx, r.logger, func(ctx context.Context) error {
		lease, err = r.once(ctx)
		return err
	})
	return lease, err
}

// once creates a lease and writes the shard under it. It writes the volume's generation without a lease.
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

// may checks whether the shard may be registered. It returns the conditions under which the state that it has read is
// still current, and the volume's registered step.
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

// try writes the shard and its volume in one transaction if neither has changed since it was read. It returns false if
// one has.
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

// notLive returns an error if a live shard with the given key is registered with this volume. Otherwise it returns the
// condition for a transaction that the key has not changed.
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

// renewalsOfALivingShard is the number of renewals after which a registration counts as that of a live process. etcd
// itself may have made a single renewal, because it extends all leases when its leader changes.
const renewalsOfALivingShard = 2

// gone waits until another process has stopped, which is registered under the shard's name, at another address and with
// an earlier generation of this volume. That process no longer runs if no process listens at its address, for example
// after a crash, or if its registration has expired. If it keeps renewing its registration, it is alive, and this
// volume is a copy of its volume. A later generation of this volume does not prove the opposite, because a process that
// starts on a copy also raises the copied generation.
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

// goneEvery is the interval between two checks of a registration. etcd reports the remaining time of a lease in whole
// seconds.
const goneEvery = 200 * time.Millisecond

// goneMax bounds the wait until a registration expires. A registration expires after leaseSeconds if etcd is healthy.
// Tests use a shorter time.
var goneMax = 5 * leaseSeconds * time.Second

// refuses reports whether no process listens at an address. It returns false if it cannot be certain.
func refuses(ctx context.Context, address string) bool {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(soon, "tcp", address)
	if err == nil {
		_ = conn.Close() // an error loses nothing, because nothing was sent
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// keep keeps the lease alive, and registers the shard again whenever the lease was lost, until ctx is done. It returns
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

// mayFollow is like the function MayFollow, but takes the value of etcd's key for the shard's volume. It also returns
// the decoded record.
func mayFollow(value []byte, shard placement.Shard) (seen placement.VolumeRecord, err error) {
	err = json.Unmarshal(value, &seen)
	if err == nil && (seen.Volume != shard.VolumeUUID || max(seen.Generation, seen.Step.Number) > placement.NumberMax) {
		err = fmt.Errorf("it is of volume %s, generation %d, step %d", seen.Volume, seen.Generation, seen.Step.Number)
	}
	if err != nil { // not ErrRolledBack, because an unreadable record does not show that the volume was rolled back
		return seen, fmt.Errorf("%w: key %s%s in etcd, which says in which state the volume was last, cannot be read: %w: "+
			"see that the volume was not set back and is no copy, then delete the key", placement.ErrUnusable, volumesKey,
			shard.VolumeUUID, err)
	}
	return seen, placement.MayFollow(seen, shard)
}

// NextStep records in etcd that the volume of a registered shard is in its next step. It returns ErrRolledBack if
// another process has registered the volume since then. This shard must then stop serving. After any other error the
// caller must report the same step again.
func (s *Store) NextStep(ctx context.Context, shard placement.Shard) error {
	s.steps.Store(shard.Boot, shard) // the step is on disk, so a new registration must report it
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
