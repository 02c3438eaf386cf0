package registry

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ledgers accesses the ledgers of all tenants.
type ledgers struct{ keys }

// Ledger is etcd's record of how much of a tenant's data each shard stores.
type Ledger struct {
	Value    []byte // nil if there is no ledger
	Revision int64  // revision of the key, or 0 if there is no ledger
	Groups   int64  // number of the store's groups whose names begin with the tenant's prefix
}

// TenantKey is a tenant's name and the prefix of its groups' names.
type TenantKey struct{ Name, Prefix string }

// Ledgers reads the tenants' ledgers and counts their groups. The result is in the order of tenants.
func (l *ledgers) Ledgers(ctx context.Context, tenants []TenantKey) ([]Ledger, error) {
	out := make([]Ledger, 0, len(tenants))
	for part := range slices.Chunk(tenants, txnOpsMax/3) {
		ops := make([]clientv3.Op, 0, 3*len(part))
		for _, t := range part {
			ops = append(append(ops, clientv3.OpGet(l.prefix+tenantsKey+t.Name)), l.countOps(t.Prefix)...)
		}
		answer, err := l.client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("read what tenants store from etcd: %w", err)
		}
		for i := range part {
			there := only(answer.Responses[3*i].GetResponseRange().Kvs)
			out = append(out, Ledger{Value: there.Value, Revision: there.ModRevision,
				Groups: counted(answer.Responses[3*i+1:])})
		}
	}
	return out, nil
}

// AreRegistered reports which of the given shards are registered now.
func (l *ledgers) AreRegistered(ctx context.Context, shards []string) (map[string]bool, error) {
	out := make(map[string]bool, len(shards))
	for part := range slices.Chunk(shards, txnOpsMax) {
		ops := make([]clientv3.Op, 0, len(part))
		for _, name := range part {
			ops = append(ops, clientv3.OpGet(l.prefix+shardsKey+name, clientv3.WithCountOnly()))
		}
		answer, err := l.client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("ask etcd which shards are registered: %w", err)
		}
		for i, name := range part {
			out[name] = answer.Responses[i].GetResponseRange().Count > 0
		}
	}
	return out, nil
}

// PutLedger writes a tenant's ledger if etcd still holds the ledger that was read at the given revision. With revision
// 0, it writes the ledger if etcd holds none. It returns false if the ledger has changed, or the store no longer
// exists.
func (l *ledgers) PutLedger(ctx context.Context, tenant string, value []byte, revision int64) (bool, error) {
	done, err := l.replace(ctx, tenantsKey+tenant, value, l.at(tenantsKey+tenant, revision), l.exists())
	if err != nil {
		return false, fmt.Errorf("write what tenant %s stores to etcd: %w", tenant, err)
	}
	return done, nil
}
