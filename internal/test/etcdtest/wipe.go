package etcdtest

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Wipe deletes everything that etcd holds, including the leases, as if etcd had lost its volumes. Wipe first deletes
// the keys, and then revokes the leases one by one. A process may register again in between. Its new key remains,
// because it belongs to a new lease.
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
