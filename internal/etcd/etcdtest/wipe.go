package etcdtest

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Wipe deletes all that etcd holds, as the loss of its volumes does.
func Wipe(ctx context.Context, client *clientv3.Client) error {
	_, err := client.Delete(ctx, "\x00", clientv3.WithFromKey())
	return err
}
