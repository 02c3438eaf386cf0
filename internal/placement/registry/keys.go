package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// These are the keys below the prefix <prefix>/<store name>/.
const (
	metaKey     = "meta"
	shardsKey   = "shards/"
	groupsKey   = placement.GroupsKey
	targetsKey  = placement.TargetsKey
	volumesKey  = "volumes/"
	statesKey   = "states/" // desired states of shards; see SetShardState
	electionKey = "election/planner"
	frozenKey   = "frozen" // key that exists while the store is frozen (safety rule 9)
	// Views do not contain the following keys.
	accessKey  = "access" // table of grants, for internal/security/access
	signingKey = "seal"   // key with which gateways and shards sign values that clients return later
	// See dataviews.go for these two.
	viewsMarkKey = "views"
	viewsKey     = "views/"
	// These keys sort after volumes/. Therefore they are outside the range that older versions of Sheaf watch.
	wakesKey   = "wakes/"       // see wakes.go
	keeperKey  = "wakes-keeper" // see wakes.go
	weightsKey = "weights/"     // see weights.go
	// The key tenantsKey+NAME holds the usage of the tenant NAME, for internal/shard/quota. It exists only for tenants
	// with storage quotas.
	tenantsKey = "weights-of-tenants/"
	// The key deletedKey+NAME exists while the group NAME is deleted. These keys serve only to count deleted groups.
	deletedKey = "within-deleted/"
	// The key withinKey+PREFIX is written together with each group that is created within a bound. See create.go.
	withinKey = "within/"
)

const (
	// etcd rejects a transaction with more than 128 operations. txnOpsMax is lower, so that nested transactions can use
	// the remaining operations.
	txnOpsMax    = 50
	readKeysMax  = 100
	listPageKeys = 5000
)

// keys reads and writes the keys of one store in etcd.
type keys struct {
	client *clientv3.Client
	prefix string // prefix of all keys of the store, with a trailing slash
	logger *slog.Logger
}

// name returns a key without the store's prefix.
func (k keys) name(key []byte) string { return strings.TrimPrefix(string(key), k.prefix) }

// at returns the condition that a key has not changed since it was read at the given revision. If the revision is 0,
// the condition is that the key does not exist.
func (k keys) at(name string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(k.prefix+name), "=", revision)
}

func (k keys) exists() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(k.prefix+metaKey), ">", 0)
}

// only returns the result of a request for a single key. If the key does not exist, the result has ModRevision 0.
func only(found []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(found) == 0 {
		return &mvccpb.KeyValue{}
	}
	return found[0]
}

// get reads one key. If the key does not exist, the result has the ModRevision 0.
func (k keys) get(ctx context.Context, name string) (*mvccpb.KeyValue, error) {
	answer, err := k.client.Get(ctx, k.prefix+name)
	if err != nil {
		return nil, fmt.Errorf("read %s from etcd: %w", k.prefix+name, err)
	}
	return only(answer.Kvs), nil
}

// encode returns the JSON of a value, for storage in etcd. It panics if the value cannot be encoded, which does not
// happen for any type in use.
func encode(value any) []byte {
	out, err := json.Marshal(value)
	if err != nil {
		// JSON cannot represent the type of the value. This is a programming error, which any test of the caller reveals.
		panic(err)
	}
	return out
}

// opPut returns an operation that writes a value as JSON.
func (k keys) opPut(name string, value any, options ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpPut(k.prefix+name, string(encode(value)), options...)
}

// create writes a key if the key does not exist yet, and returns the value that etcd then holds.
func (k keys) create(ctx context.Context, name string, value []byte) (there []byte, err error) {
	answer, err := k.client.Txn(ctx).If(k.at(name, 0)).
		Then(clientv3.OpPut(k.prefix+name, string(value))).Else(clientv3.OpGet(k.prefix + name)).Commit()
	if err != nil || answer.Succeeded {
		return value, err
	}
	return only(answer.Responses[0].GetResponseRange().Kvs).Value, nil
}

// replace writes a key if all conditions are true, and reports whether it has written the key.
func (k keys) replace(ctx context.Context, name string, value []byte, conditions ...clientv3.Cmp) (done bool,
	err error) {
	answer, err := k.client.Txn(ctx).If(conditions...).Then(clientv3.OpPut(k.prefix+name, string(value))).Commit()
	return err == nil && answer.Succeeded, err
}

// read reads several keys at one revision. Their names lack the store's prefix. The result found has no entry for a
// key that does not exist.
func (k keys) read(ctx context.Context, names []string) (found map[string]*mvccpb.KeyValue, at readAt, err error) {
	found = make(map[string]*mvccpb.KeyValue, len(names))
	for chunk := range slices.Chunk(names, readKeysMax) {
		ops := make([]clientv3.Op, 0, len(chunk))
		for _, name := range chunk {
			var options []clientv3.OpOption
			if at.revision > 0 {
				options = append(options, clientv3.WithRev(at.revision))
			}
			ops = append(ops, clientv3.OpGet(k.prefix+name, options...))
		}
		answer, err := k.client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, at, fmt.Errorf("read %d keys below %s from etcd: %w", len(chunk), k.prefix, err)
		}
		if at.revision == 0 {
			at = readAt{answer.Header.Revision, answer.Header.ClusterId}
		}
		for i, r := range answer.Responses {
			if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
				found[chunk[i]] = kvs[0]
			}
		}
	}
	return found, at, nil
}

// readAt identifies the state of etcd from which something was read, by the cluster's id and the revision.
type readAt struct {
	revision int64
	cluster  uint64
}

// pages reads a range of keys in several pages, all at one revision. The argument at is that revision; 0 means the
// newest one. pages returns the revision that it used.
func (k keys) pages(ctx context.Context, from, end string, at int64, each func(kv *mvccpb.KeyValue) error,
	options ...clientv3.OpOption,
) (revision int64, cluster uint64, err error) {
	return k.pagesWithin(ctx, 0, from, end, at, each, options...)
}

// pagesWithin is like pages, but limits the time of each request; 0 means no limit.
func (k keys) pagesWithin(ctx context.Context, limit time.Duration, from, end string, at int64,
	each func(kv *mvccpb.KeyValue) error, options ...clientv3.OpOption,
) (revision int64, cluster uint64, err error) {
	for {
		page := append(slices.Clone(options), clientv3.WithRange(end), clientv3.WithLimit(listPageKeys))
		if at > 0 {
			page = append(page, clientv3.WithRev(at))
		}
		answer, err := k.page(ctx, limit, from, page)
		if err != nil {
			return 0, 0, fmt.Errorf("list %s in etcd: %w", k.prefix, err)
		}
		if at == 0 {
			at = answer.Header.Revision
		}
		cluster = answer.Header.ClusterId
		for _, kv := range answer.Kvs {
			if err := each(kv); err != nil {
				return 0, 0, err
			}
		}
		if !answer.More {
			return at, cluster, nil
		}
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
}

// page reads one page. It limits the time of the request; 0 means no limit.
func (k keys) page(ctx context.Context, limit time.Duration, from string, options []clientv3.OpOption) (
	*clientv3.GetResponse, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return k.client.Get(ctx, from, options...)
}

// errNotElected means that nothing was written, because a condition of the transaction was false, for example that
// this planner is still elected.
var errNotElected = errors.New("another planner is elected")

// write applies operations in transactions with at most txnOpsMax operations each. A transaction is applied only if
// all conditions in onlyIf are true. Otherwise write returns errNotElected.
func (k keys) write(ctx context.Context, ops []clientv3.Op, onlyIf ...clientv3.Cmp) error {
	_, err := k.writeEach(ctx, ops, onlyIf...)
	return err
}

// writeEach is like write, but also reports for each operation whether it took effect. A nested transaction takes no
// effect if its conditions are false.
func (k keys) writeEach(ctx context.Context, ops []clientv3.Op, onlyIf ...clientv3.Cmp) (done []bool, err error) {
	for chunk := range slices.Chunk(ops, txnOpsMax) {
		answer, err := k.client.Txn(ctx).If(onlyIf...).Then(chunk...).Commit()
		if err != nil {
			return done, fmt.Errorf("write %d keys below %s to etcd: %w", len(chunk), k.prefix, err)
		}
		if !answer.Succeeded {
			return done, errNotElected
		}
		for _, r := range answer.Responses {
			nested := r.GetResponseTxn()
			done = append(done, nested == nil || nested.Succeeded)
		}
	}
	return done, nil
}

// keepAlive returns when the lease is lost or ctx is done. It must keep reading the client's responses, because
// otherwise the client would stop renewing the lease.
func (k keys) keepAlive(ctx context.Context, lease clientv3.LeaseID) {
	answers, err := k.client.KeepAlive(ctx, lease)
	if err != nil {
		return
	}
	for range answers {
	}
}

// revokePatience limits how long a process waits for the revocation of a lease when it stops. Tests wait longer,
// because they rely on the deletion of the lease's keys, even if etcd's disk is slow.
var revokePatience = time.Second

// revoke revokes a lease, so that etcd deletes its keys immediately. If the revocation fails, the lease expires later
// by itself.
func (k keys) revoke(lease clientv3.LeaseID) {
	if lease == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), revokePatience)
	defer cancel()
	_, _ = k.client.Revoke(ctx, lease)
}
