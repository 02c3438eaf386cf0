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

// statusWriter writes the statuses of pools and Shards when a write is due. Safe for concurrent use.
type statusWriter struct {
	client.Client
	// written maps the UID of a pool or Shard to the time.Time of the last write of its status.
	written *sync.Map
	now     time.Time
}

// writeDue writes the status of an object if step.WriteDue says so and if the object has not changed since it was
// read: an older status must not revert recorded values, such as the UUID of a volume. The argument next is a copy of
// the object read, with the new status.
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
		gvk, _ := apiutil.GVKForObject(read, w.Scheme()) // no error: the patch has looked it up too
		return false, fmt.Errorf("write the status of %s %s: %w", gvk.Kind, read.GetName(), err)
	}
	w.written.Store(read.GetUID(), w.now)
	return true, nil
}
