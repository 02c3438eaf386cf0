package placement

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// tenantsKey has a ledger of each tenant with stored quotas, which internal/quota reads. It comes behind volumes/,
// where no watch of placement sees it, and is no part of a View.
const tenantsKey = "weights-of-tenants/"

// Ledger says which shards store what of a tenant, as etcd has it.
type Ledger struct {
	Value    []byte // nil: there is none
	Revision int64  // of the key; 0: there is none
	Groups   int64  // of the store, whose names begin with the tenant's prefix
}

// TenantKey names a tenant, and the prefix of its groups.
type TenantKey struct{ Name, Prefix string }

// Ledgers reads those of tenants, in their order, and counts their groups.
func (s *Store) Ledgers(ctx context.Context, tenants []TenantKey) ([]Ledger, error) {
	out := make([]Ledger, 0, len(tenants))
	for part := range slices.Chunk(tenants, txnOpsMax/2) {
		ops := make([]clientv3.Op, 0, 2*len(part))
		for _, t := range part {
			ops = append(ops, clientv3.OpGet(s.prefix+tenantsKey+t.Name), clientv3.OpGet(s.prefix+groupsKey+t.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()))
		}
		answer, err := s.client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("read what tenants store from etcd: %w", err)
		}
		for i := range part {
			ledger := Ledger{Groups: answer.Responses[2*i+1].GetResponseRange().Count}
			if kvs := answer.Responses[2*i].GetResponseRange().Kvs; len(kvs) > 0 {
				ledger.Value, ledger.Revision = kvs[0].Value, kvs[0].ModRevision
			}
			out = append(out, ledger)
		}
	}
	return out, nil
}

// AreRegistered tells which of these shards are registered now.
func (s *Store) AreRegistered(ctx context.Context, shards []string) (map[string]bool, error) {
	out := make(map[string]bool, len(shards))
	for part := range slices.Chunk(shards, txnOpsMax) {
		ops := make([]clientv3.Op, 0, len(part))
		for _, name := range part {
			ops = append(ops, clientv3.OpGet(s.prefix+shardsKey+name, clientv3.WithCountOnly()))
		}
		answer, err := s.client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("ask etcd which shards are registered: %w", err)
		}
		for i, name := range part {
			out[name] = answer.Responses[i].GetResponseRange().Count > 0
		}
	}
	return out, nil
}

// PutLedger writes the ledger of a tenant in the place of the one that was read at a revision, 0: of none. False: there
// is another one by then, or the store is gone.
func (s *Store) PutLedger(ctx context.Context, tenant string, value []byte, revision int64) (bool, error) {
	key := s.prefix + tenantsKey + tenant
	answer, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", revision), clientv3.Compare(clientv3.CreateRevision(s.prefix+metaKey), ">", 0)).
		Then(clientv3.OpPut(key, string(value))).Commit()
	if err != nil {
		return false, fmt.Errorf("write what tenant %s stores to etcd: %w", tenant, err)
	}
	return answer.Succeeded, nil
}
