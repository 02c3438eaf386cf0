package etcdtest

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Wipe deletes everything that etcd holds, including leases, as if etcd had lost its volumes. Wipe deletes the keys
// first, and then revokes the leases one by one. If a process registers again in between, it keeps its new key, because
// that key has a new lease.
func Wipe(ctx context.Context, client *clientv3.Client) error {
	if _, err := client.Delete(ctx, "\x00", clientv3.WithFromKey()); err != nil {
		return err
	}
	leases, err := client.Leases(ctx)
	if err != nil {
		return err
	}
	for _, lease := range leases.Leases {
		if _, err := client.Revoke(ctx, lease.ID); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
	}
	return nil
}
