package registry

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// grants accesses the keys in etcd that control authorization: the grant table and the signing key.
type grants struct{ keys }

// Access is the table of grants as etcd stores it.
type Access struct {
	Table    []byte // nil if there is no table
	Revision int64  // revision of the key; 0 if there is no table
}

// Access reads the table of grants.
func (g *grants) Access(ctx context.Context) (Access, error) {
	there, err := g.get(ctx, accessKey)
	if err != nil {
		return Access{}, err
	}
	return Access{Table: there.Value, Revision: there.ModRevision}, nil
}

// PutAccess writes a table of grants, provided that etcd still holds the table that was read at the given revision.
// If the revision is 0, etcd must hold no table. If that is not the case, PutAccess returns ErrAccessChanged.
func (g *grants) PutAccess(ctx context.Context, table []byte, revision int64) error {
	done, err := g.replace(ctx, accessKey, table, g.at(accessKey, revision))
	switch {
	case err != nil:
		return fmt.Errorf("write %s to etcd: %w", g.prefix+accessKey, err)
	case !done:
		return placement.ErrAccessChanged
	}
	return nil
}

// AccessSince reads the table of grants if the table has changed since the caller last read it, at the given
// revision. Revision 0 means that there was no table at that time. If the table has not changed, the result changed
// is false, and etcd does not send the table.
func (g *grants) AccessSince(ctx context.Context, revision int64) (found Access, changed bool, err error) {
	answer, err := g.client.Txn(ctx).If(g.at(accessKey, revision)).Else(clientv3.OpGet(g.prefix + accessKey)).Commit()
	if err != nil || answer.Succeeded {
		return Access{}, false, err
	}
	there := only(answer.Responses[0].GetResponseRange().Kvs)
	return Access{Table: there.Value, Revision: there.ModRevision}, true, nil
}

const signingKeyBytes = 32

// SigningKey reads the store's signing key. If there is none, it creates a random key and stores it.
func (g *grants) SigningKey(ctx context.Context) ([]byte, error) {
	made := make([]byte, signingKeyBytes)
	if _, err := rand.Read(made); err != nil {
		return nil, fmt.Errorf("choose a key: %w", err)
	}
	there, err := g.create(ctx, signingKey, made)
	if err != nil {
		return nil, fmt.Errorf("read or make %s in etcd: %w", g.prefix+signingKey, err)
	}
	return there, nil
}

// accessLook is the interval at which the table of grants is polled in addition to the watch, which may be broken.
const accessLook = 2 * time.Second

// WatchAccess sends the current table of grants, and then each table that replaces it. It closes the channel when ctx
// is done. A slow reader receives only the newest table. While etcd does not respond, nothing is sent.
func (g *grants) WatchAccess(ctx context.Context) <-chan Access {
	out := make(chan Access, 1)
	go func() {
		defer close(out)
		last := int64(-1)
		for tries := retries(); ctx.Err() == nil; tries.Wait(ctx) {
			began := time.Now()
			_ = g.watchAccess(ctx, &last, out) // after any error, the table is read again
			if time.Since(began) > retryMax {
				tries.Again()
			}
		}
	}()
	return out
}

// watchAccess sends each table whose revision differs from the revision of the table that was sent last. It returns
// when the watch breaks.
func (g *grants) watchAccess(ctx context.Context, last *int64, out chan Access) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	key := g.prefix + accessKey
	look := func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*accessLook)
		defer cancel()
		found, changed, err := g.AccessSince(ctx, max(*last, 0))
		if err != nil || !changed && *last >= 0 {
			return err
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
