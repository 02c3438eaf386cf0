package shardpool

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"sheaf.dev/sheaf/controllers/step"
)

// statusWriter writes the statuses of pools and Shards where that is due. Safe for use by several goroutines.
type statusWriter struct {
	client.Client
	written *sync.Map // of the UID of a pool or Shard: time.Time of the last write of its status
	now     time.Time
}

// writeDue writes the status of an object where step.WriteDue says so, and only on what was read: an older status must
// not take back what is recorded there, such as the UUID of a volume. next is a copy of read with the status after.
func writeDue[T any](ctx context.Context, w statusWriter, read, next client.Object, before, after T,
	told func(T) T) (changed bool, err error) {
	since := step.PauseNumbers
	if at, ok := w.written.Load(read.GetUID()); ok {
		since = w.now.Sub(at.(time.Time))
	}
	if !step.WriteDue(before, after, told, since) {
		return false, nil
	}
	if err := w.Status().Patch(ctx, next, step.IfUnchanged(read), client.FieldOwner(step.ManagerOfStatus)); err != nil {
		gvk, _ := apiutil.GVKForObject(read, w.Scheme()) // the patch has looked for it, too
		return false, fmt.Errorf("write the status of %s %s: %w", gvk.Kind, read.GetName(), err)
	}
	w.written.Store(read.GetUID(), w.now)
	return true, nil
}
