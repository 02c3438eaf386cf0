package registry

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ledgers reads and writes the ledgers of all tenants.
type ledgers struct{ keys }

// Ledger records how much of a tenant's data each shard stores. It is kept in etcd.
type Ledger struct {
	Value    []byte // nil if there is no ledger
	Revision int64  // revision of the key, or 0 if there is no ledger
	Groups   int64  // number of groups whose names begin with the tenant's prefix
}

// TenantKey identifies a tenant by its name, and its groups by the prefix of their names.
type TenantKey struct{ Name, Prefix string }

// Ledgers reads the ledgers of the given tenants and counts their groups. The results are in the same order as the
// tenants.
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

// PutLedger writes a tenant's ledger, provided that etcd still holds the ledger that was read at the given revision.
// If the revision is 0, etcd must hold no ledger. PutLedger returns false if the ledger has changed, or if the store
// no longer exists.
func (l *ledgers) PutLedger(ctx context.Context, tenant string, value []byte, revision int64) (bool, error) {
	done, err := l.replace(ctx, tenantsKey+tenant, value, l.at(tenantsKey+tenant, revision), l.exists())
	if err != nil {
		return false, fmt.Errorf("write what tenant %s stores to etcd: %w", tenant, err)
	}
	return done, nil
}
