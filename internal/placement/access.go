package placement

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrAccessChanged says that the table of grants is another than the one that was read.
var ErrAccessChanged = errors.New("the table of grants was changed since it was read")

// grants are how calls are judged: the table of grants, and the key of seals.
type grants struct{ keys }

// Access is the table of grants as etcd has it.
type Access struct {
	Table    []byte // nil: there is none
	Revision int64  // of the key; 0: there is none
}

// Access reads the table of grants.
func (g *grants) Access(ctx context.Context) (Access, error) {
	there, err := g.get(ctx, accessKey)
	if err != nil {
		return Access{}, err
	}
	return Access{Table: there.Value, Revision: there.ModRevision}, nil
}

// PutAccess writes a table of grants in the place of the one that was read at a revision, 0: of none. ErrAccessChanged
// where there is another one by then.
func (g *grants) PutAccess(ctx context.Context, table []byte, revision int64) error {
	done, err := g.replace(ctx, accessKey, table, g.at(accessKey, revision))
	switch {
	case err != nil:
		return fmt.Errorf("write %s to etcd: %w", g.prefix+accessKey, err)
	case !done:
		return ErrAccessChanged
	}
	return nil
}

const sealKeyBytes = 32

// SealKey reads the key of the store's seals, and makes it at random where there is none.
func (g *grants) SealKey(ctx context.Context) ([]byte, error) {
	made := make([]byte, sealKeyBytes)
	if _, err := rand.Read(made); err != nil {
		return nil, fmt.Errorf("choose a key: %w", err)
	}
	there, err := g.create(ctx, sealKey, made)
	if err != nil {
		return nil, fmt.Errorf("read or make %s in etcd: %w", g.prefix+sealKey, err)
	}
	return there, nil
}

// accessLook is how often the table of grants is read though no change is heard: a watch may be silent for other
// reasons.
const accessLook = 2 * time.Second

// WatchAccess gives the table of grants as it is, and again after each change, until ctx ends; then the channel is
// closed. A slow reader gets only the newest. While etcd does not answer, nothing is given.
func (g *grants) WatchAccess(ctx context.Context) <-chan Access {
	out := make(chan Access, 1)
	go func() {
		defer close(out)
		last := int64(-1)
		for tries := retries(); ctx.Err() == nil; tries.Wait(ctx) {
			began := time.Now()
			_ = g.watchAccess(ctx, &last, out) // whatever ended it, the remedy is to read again
			if time.Since(began) > retryMax {
				tries.Again()
			}
		}
	}()
	return out
}

// watchAccess gives what differs from the revision that was given last, until the watch breaks.
func (g *grants) watchAccess(ctx context.Context, last *int64, out chan Access) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	key := g.prefix + accessKey
	look := func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*accessLook)
		defer cancel()
		// The table itself is sent only where it is another one.
		answer, err := g.client.Txn(ctx).If(g.at(accessKey, max(*last, 0))).Else(clientv3.OpGet(key)).Commit()
		switch {
		case err != nil:
			return err
		case answer.Succeeded && *last >= 0:
			return nil
		}
		var found Access
		if !answer.Succeeded {
			there := only(answer.Responses[0].GetResponseRange().Kvs)
			found = Access{Table: there.Value, Revision: there.ModRevision}
		}
		*last = found.Revision
		offer(out, found)
		return nil
	}
	changes := g.client.Watch(ctx, key)
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
