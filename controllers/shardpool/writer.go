package shardpool

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
)

// writer writes to the API server for one pool, and reports its actions. Its client reads from the cache.
type writer struct {
	client.Client
	recorder events.EventRecorder // if nil, reports go only to the log
	// pool owns the objects that the writer writes. Only annotate changes the pool, and it changes only the metadata.
	pool *v1alpha1.ShardPool
}

// tell reports an action or a change of the pool.
func (h writer) tell(ctx context.Context, reason, action string, object client.Object, format string, args ...any) {
	step.Report(ctx, h.recorder, h.pool, step.News{Reason: reason, Action: action, Object: object,
		Message: fmt.Sprintf(format, args...)})
}

// remove deletes exactly the object that was observed, and reports the deletion. It ignores an object that is already
// being deleted. The argument what names the object in an error.
func (h writer) remove(ctx context.Context, object client.Object, what string, news step.News,
	options ...client.DeleteOption) error {
	if object.GetDeletionTimestamp() != nil {
		return nil
	}
	uid := object.GetUID()
	options = append([]client.DeleteOption{client.Preconditions{UID: &uid}}, options...)
	if err := h.Delete(ctx, object, options...); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", what, err)
	}
	news.Object = object
	step.Report(ctx, h.recorder, h.pool, news)
	return nil
}

// annotate changes the pool's annotations immediately, if the pool has not changed since it was read.
func (h writer) annotate(ctx context.Context, change func(*v1alpha1.ShardPool)) error {
	if err := step.WriteMetadata(ctx, h.Client, h.pool, change); err != nil {
		return fmt.Errorf("note that a volume is given up: %w", err)
	}
	return nil
}

// note records the outcome of part of a step, so that the parts after it still run. It returns a temporary error
// instead of recording it, because such an error ends the reconcile, which is then repeated immediately.
func note(notes *step.Notes, out step.Outcome) step.Outcome {
	if step.Stale(out.Err()) {
		return out
	}
	notes.Add(out)
	return step.Complete()
}
