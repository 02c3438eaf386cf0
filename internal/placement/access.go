package placement

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// accessKey holds the table of grants, which internal/access reads. It is no part of a View.
const accessKey = "access"

// ErrAccessChanged says that the table of grants is another than the one that was read.
var ErrAccessChanged = errors.New("the table of grants was changed since it was read")

// Access is the table of grants as etcd has it.
type Access struct {
	Table    []byte // nil: there is none
	Revision int64  // of the key; 0: there is none
}

// Access reads the table of grants.
func (s *Store) Access(ctx context.Context) (Access, error) {
	answer, err := s.client.Get(ctx, s.prefix+accessKey)
	if err != nil {
		return Access{}, fmt.Errorf("read %s from etcd: %w", s.prefix+accessKey, err)
	}
	if len(answer.Kvs) == 0 {
		return Access{}, nil
	}
	return Access{Table: answer.Kvs[0].Value, Revision: answer.Kvs[0].ModRevision}, nil
}

// PutAccess writes a table of grants in the place of the one that was read at a revision, 0: of none. ErrAccessChanged
// where there is another one by then.
func (s *Store) PutAccess(ctx context.Context, table []byte, revision int64) error {
	key := s.prefix + accessKey
	answer, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpPut(key, string(table))).Commit()
	if err != nil {
		return fmt.Errorf("write %s to etcd: %w", key, err)
	}
	if !answer.Succeeded {
		return ErrAccessChanged
	}
	return nil
}

// sealKey holds the key by which gateways and shards sign what callers hand back. It is no part of a View.
const (
	sealKey      = "seal"
	sealKeyBytes = 32
)

// SealKey reads the key of the store's seals, and makes it at random where there is none.
func (s *Store) SealKey(ctx context.Context) ([]byte, error) {
	made := make([]byte, sealKeyBytes)
	if _, err := rand.Read(made); err != nil {
		return nil, fmt.Errorf("choose a key: %w", err)
	}
	key := s.prefix + sealKey
	answer, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(made))).Else(clientv3.OpGet(key)).Commit()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read or make %s in etcd: %w", key, err)
	case answer.Succeeded:
		return made, nil
	}
	return answer.Responses[0].GetResponseRange().Kvs[0].Value, nil
}

// accessLook is how often the table of grants is read though no change is heard: a watch may be silent for other
// reasons.
const accessLook = 2 * time.Second

// WatchAccess gives the table of grants as it is, and again after each change, until ctx ends; then the channel is
// closed. A slow reader gets only the newest. While etcd does not answer, nothing is given.
func (s *Store) WatchAccess(ctx context.Context) <-chan Access {
	out := make(chan Access, 1)
	go func() {
		defer close(out)
		last := int64(-1)
		for tries := retries(); ctx.Err() == nil; tries.Wait(ctx) {
			began := time.Now()
			_ = s.watchAccess(ctx, &last, out) // whatever ended it, the remedy is to read again
			if time.Since(began) > retryMax {
				tries.Again()
			}
		}
	}()
	return out
}

// watchAccess gives what differs from the revision that was given last, until the watch breaks.
func (s *Store) watchAccess(ctx context.Context, last *int64, out chan Access) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	key := s.prefix + accessKey
	look := func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*accessLook)
		defer cancel()
		// The table itself is sent only where it is another one.
		answer, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", max(*last, 0))).Else(clientv3.OpGet(key)).Commit()
		switch {
		case err != nil:
			return err
		case answer.Succeeded && *last >= 0:
			return nil
		}
		var found Access
		if !answer.Succeeded {
			if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
				found = Access{Table: kvs[0].Value, Revision: kvs[0].ModRevision}
			}
		}
		*last = found.Revision
		select {
		case <-out:
		default:
		}
		out <- found
		return nil
	}
	changes := s.client.Watch(ctx, key)
	tick := time.NewTicker(accessLook)
	defer tick.Stop()
	for {
		if err := look(); err != nil {
			return err
		}
		select {
		case change, ok := <-changes:
			if !ok {
				return ctx.Err()
			}
			if err := change.Err(); err != nil {
				return err
			}
		case <-tick.C:
		}
	}
}
