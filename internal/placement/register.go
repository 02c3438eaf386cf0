package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/pause"
)

// leaseSeconds is the time after which a shard that went silent is taken for gone.
const leaseSeconds = 6

// RegisterShard makes a shard known as long as the returned stop is not called: under a lease that is kept alive, and
// made anew after an outage of etcd. It refuses with ErrNameTaken a name under which another volume, the same or a
// later generation of this one or, at another address, an earlier one (then this is a clone) is registered live by
// another process, and a volume that is live under another name. It refuses with ErrRolledBack a volume that does not
// come of what was ever registered of it, live or not: see MayFollow. ctx bounds the first registration and, when it
// ends later, ends the registration like stop. stop takes the shard out of etcd (within a second) and may be called
// more than once. refused is told, once, that the shard cannot be registered anew after its lease ran out, because its
// name or volume is another's by now: it must stop serving. An etcd that does not answer is no such reason. stop waits
// for refused to return.
func (s *Store) RegisterShard(ctx context.Context, shard Shard, refused ...func(error)) (stop func(), err error) {
	if err := validateShard(shard); err != nil {
		return nil, err
	}
	if shard.Boot == uuid.Nil {
		shard.Boot = uuid.New()
	}
	lease, err := s.registerFirst(ctx, shard)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer s.forgetSteps(shard.Boot)
		if err := s.keepRegistered(ctx, shard, lease); err != nil {
			slog.Error("cannot register again", "shard", shard.Name, "error", err)
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

// registerPatience bounds the tries of the first registration while etcd is too slow for it.
const registerPatience = time.Minute

// registerFirst is registerOnce, again while etcd is too slow: its disk stands still for a while, mostly. What a try
// that had no answer has written is this process's own, and does not stand in the way of the next one.
func (s *Store) registerFirst(ctx context.Context, shard Shard) (clientv3.LeaseID, error) {
	began := time.Now()
	for tries := retries(); ; tries.Wait(ctx) {
		lease, err := s.registerOnce(ctx, shard)
		if err == nil || !isPassing(err) || ctx.Err() != nil || time.Since(began) > registerPatience {
			return lease, err
		}
		slog.Warn("the shard could not be registered, tried again", "shard", shard.Name, "error", err)
	}
}

// isPassing tells that etcd did not answer in time, or was so slow that the lease ran out before it was used.
func isPassing(err error) bool {
	var answer rpctypes.EtcdError
	if errors.As(err, &answer) {
		return answer.Code() == codes.Unavailable || errors.Is(err, rpctypes.ErrLeaseNotFound)
	}
	return status.Code(err) == codes.Unavailable
}

// registerOnce makes a lease and writes the shard under it, and its volume's generation for good.
func (s *Store) registerOnce(ctx context.Context, shard Shard) (clientv3.LeaseID, error) {
	granted, err := s.client.Grant(ctx, leaseSeconds)
	if err != nil {
		return 0, fmt.Errorf("register shard %s in etcd: %w", shard.Name, err)
	}
	for {
		done, err := s.tryRegister(ctx, shard, granted.ID)
		if err != nil {
			s.revoke(granted.ID)
			return 0, fmt.Errorf("register shard %s in etcd: %w", shard.Name, err)
		}
		if done {
			return granted.ID, nil
		}
	}
}

// MayRegister tells, as RegisterShard would, whether a shard may be registered as it will be, and which step of its
// volume is registered now; zero: none is. Nothing is written, here or to its volume: a copy that raised its generation
// each time it is refused would come to have a later one than the volume it is a copy of.
func (s *Store) MayRegister(ctx context.Context, shard Shard) (registered Step, err error) {
	if err := validateShard(shard); err != nil {
		return Step{}, err
	}
	_, registered, err = s.mayRegister(ctx, shard)
	if err != nil {
		return Step{}, fmt.Errorf("register shard %s in etcd: %w", shard.Name, err)
	}
	return registered, nil
}

// mayRegister gives the conditions under which what it has read still holds, and the step of the volume that is
// registered.
func (s *Store) mayRegister(ctx context.Context, shard Shard) (conditions []clientv3.Cmp, registered Step, err error) {
	key, volumeKey := s.prefix+shardsKey+shard.Name, s.prefix+volumesKey+shard.VolumeUUID.String()
	read, err := s.client.Txn(ctx).Then(clientv3.OpGet(key), clientv3.OpGet(volumeKey)).Commit()
	if err != nil {
		return nil, Step{}, err
	}
	var revisions [2]int64
	var values [2][]byte
	for i, r := range read.Responses {
		if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
			revisions[i], values[i] = kvs[0].ModRevision, kvs[0].Value
		}
	}
	if values[0] != nil {
		var there Shard
		if err := json.Unmarshal(values[0], &there); err != nil {
			return nil, Step{}, fmt.Errorf("shard %s is registered with a value that cannot be read: %w", shard.Name, err)
		}
		if err := MayReplace(there, shard); err != nil {
			return nil, Step{}, err
		}
		if err := s.gone(ctx, there, shard, clientv3.LeaseID(read.Responses[0].GetResponseRange().Kvs[0].Lease)); err != nil {
			return nil, Step{}, err
		}
	}
	conditions = []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(key), "=", revisions[0]),
		clientv3.Compare(clientv3.ModRevision(volumeKey), "=", revisions[1]),
	}
	if values[1] != nil {
		seen, err := decodeVolumeSeen(values[1], shard.VolumeUUID)
		if err != nil {
			return nil, Step{}, err
		}
		if err := MayFollow(seen, shard); err != nil {
			return nil, Step{}, err
		}
		registered = seen.Step
		if seen.Shard != shard.Name {
			otherKey := s.prefix + shardsKey + seen.Shard
			revision, err := s.notLive(ctx, otherKey, shard)
			if err != nil {
				return nil, Step{}, err
			}
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(otherKey), "=", revision))
		}
	}
	return conditions, registered, nil
}

// tryRegister writes shard and volume in one transaction, where both are as they were read; false: they were not.
func (s *Store) tryRegister(ctx context.Context, shard Shard, lease clientv3.LeaseID) (bool, error) {
	key, volumeKey := s.prefix+shardsKey+shard.Name, s.prefix+volumesKey+shard.VolumeUUID.String()
	shard = s.inStep(shard)
	conditions, _, err := s.mayRegister(ctx, shard)
	if err != nil {
		return false, err
	}
	value, err := json.Marshal(shard)
	if err != nil {
		return false, err
	}
	seen, err := json.Marshal(shard.Seen())
	if err != nil {
		return false, err
	}
	put, err := s.client.Txn(ctx).If(conditions...).
		Then(clientv3.OpPut(key, string(value), clientv3.WithLease(lease)), clientv3.OpPut(volumeKey, string(seen))).Commit()
	return err == nil && put.Succeeded, err
}

// notLive refuses a volume that is registered live under another shard's key, whose revision it answers.
func (s *Store) notLive(ctx context.Context, key string, shard Shard) (revision int64, err error) {
	answer, err := s.client.Get(ctx, key)
	if err != nil || len(answer.Kvs) == 0 {
		return 0, err
	}
	var there Shard
	if err := json.Unmarshal(answer.Kvs[0].Value, &there); err != nil {
		return 0, fmt.Errorf("%s in etcd cannot be read: %w", key, err)
	}
	if there.VolumeUUID == shard.VolumeUUID {
		return 0, fmt.Errorf("%w: volume %s is live as shard %s at %s: one of them is a clone, stop it",
			ErrNameTaken, shard.VolumeUUID, there.Name, there.Address)
	}
	return answer.Kvs[0].ModRevision, nil
}

// A registration that was seen to be renewed so often is of a process that lives. Once may be etcd, which lengthens all
// leases when its leader changes.
const renewalsOfALivingShard = 2

// gone returns when the process that is registered under the shard's name, at another address and on an earlier
// generation of its volume, runs no more: nobody listens there, as after a crash, or its registration has run out.
// Where it goes on to renew that, it lives, and this volume is a copy of its own: whoever starts on a copy raises the
// copied generation too.
func (s *Store) gone(ctx context.Context, there, shard Shard, lease clientv3.LeaseID) error {
	if there.Address == shard.Address || there.Generation == shard.Generation {
		return nil
	}
	began, said := time.Now(), false
	for last, renewals := int64(leaseSeconds), 0; ; {
		if refuses(ctx, there.Address) {
			return nil
		}
		left, err := s.client.TimeToLive(ctx, lease)
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
			return fmt.Errorf("%w: shard %s at %s is live on generation %d of volume %s, this one has generation %d and is a copy: stop one of them",
				ErrNameTaken, shard.Name, there.Address, there.Generation, there.VolumeUUID, shard.Generation)
		}
		waited := time.Since(began)
		if waited > goneMax {
			return fmt.Errorf("the registration of shard %s at %s, on generation %d of volume %s, neither runs out nor is renewed: it has %d s left after "+
				"%.0f s: see that etcd is well, or delete its key %s", shard.Name, there.Address, there.Generation, there.VolumeUUID, left.TTL,
				waited.Seconds(), s.prefix+shardsKey+shard.Name)
		}
		if waited > goneEvery && !said {
			said = true
			slog.Warn("somebody listens at the address of an earlier process of this shard: it is waited until that registration has run out",
				"shard", shard.Name, "address", there.Address, "seconds", left.TTL)
		}
		pause.Sleep(ctx, goneEvery)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// goneEvery is the time between two looks at a registration, of which etcd tells the whole seconds left.
const goneEvery = 200 * time.Millisecond

// goneMax bounds the wait for a registration to run out, which takes leaseSeconds where etcd is well. Tests make it
// shorter.
var goneMax = 5 * leaseSeconds * time.Second

// refuses tells whether surely no process listens at an address.
func refuses(ctx context.Context, address string) bool {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(soon, "tcp", address)
	if err == nil {
		_ = conn.Close() // nothing was said
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// keepRegistered keeps the lease alive, and registers again when it is lost, until ctx ends. The error says that the
// shard's name or volume is another's.
func (s *Store) keepRegistered(ctx context.Context, shard Shard, lease clientv3.LeaseID) error {
	tries := retries()
	for {
		if lease != 0 {
			s.keepAlive(ctx, lease)
			tries.Again()
		}
		select {
		case <-ctx.Done():
			s.revoke(lease)
			return nil
		default:
		}
		var err error
		attempt, cancel := context.WithTimeout(ctx, leaseSeconds*time.Second)
		lease, err = s.registerOnce(attempt, shard)
		cancel()
		if err == nil {
			slog.Info("registered again", "shard", shard.Name)
			continue
		}
		if errors.Is(err, ErrNameTaken) || errors.Is(err, ErrRolledBack) {
			return err
		}
		tries.Wait(ctx)
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
