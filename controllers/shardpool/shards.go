package shardpool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// shardWriter writes the Shards of a pool.
type shardWriter struct {
	statusWriter
	seen *observed.Pool
	// forget deletes the other objects of a shard that no longer exists.
	forget func(ctx context.Context, shard string) error
}

// write updates the pool's Shards to the observed state. It returns the statuses that it wrote, in order. If the API
// server refuses one Shard, the others are still written.
func (w shardWriter) write(ctx context.Context, statuses []v1alpha1.ShardStatus) (changed []v1alpha1.ShardStatus,
	err error) {
	var mu sync.Mutex
	var failed []error
	written := map[int32]bool{}
	there := map[int32]bool{}
	parallel.Each(slices.Values(statuses), writesAtOnce, func(s v1alpha1.ShardStatus) {
		changed, err := w.writeOne(ctx, s)
		mu.Lock()
		defer mu.Unlock()
		there[s.Number], written[s.Number] = true, changed && err == nil
		failed = append(failed, err)
	})
	for _, n := range slices.Sorted(maps.Keys(w.seen.Objects)) {
		if s := w.seen.Objects[n]; !there[n] && s.Of(w.seen.Pool) {
			// forget comes first: once the Shard is deleted, nothing refers to the shard's other objects.
			err := w.forget(ctx, s.Name)
			if err == nil {
				err = w.delete(ctx, s)
			}
			failed = append(failed, err)
		}
	}
	for _, s := range w.seen.Misnamed {
		failed = append(failed, w.delete(ctx, s))
	}
	for _, s := range statuses {
		if written[s.Number] {
			changed = append(changed, s)
		}
	}
	return changed, errors.Join(failed...)
}

// writeOne creates or updates one Shard. It writes the status if a write is due and if the Shard has not changed since
// it was read, because an older status must not revert recorded values, such as the UUID of the volume.
func (w shardWriter) writeOne(ctx context.Context, status v1alpha1.ShardStatus) (changed bool, err error) {
	shard := w.seen.Objects[status.Number]
	switch {
	case shard == nil:
		if shard, err = w.create(ctx, status.Number); err != nil {
			return false, err
		}
	case !shard.Of(w.seen.Pool):
		// This Shard belongs to an earlier pool of the same name, so the garbage collector would delete it sooner or later.
		// Delete it now. The next reconcile creates a new one.
		return false, w.delete(ctx, shard)
	default:
		if shard, err = w.restoreLabels(ctx, shard); err != nil {
			return false, err
		}
	}
	next := shard.DeepCopy()
	next.Status = status
	return writeDue(ctx, w.statusWriter, shard, next, shard.Status, status, fleet.UrgentOfShard)
}

// wanted builds the Shard object with number n, without its status.
func (w shardWriter) wanted(n int32) (*v1alpha1.Shard, error) {
	shard := &v1alpha1.Shard{Spec: v1alpha1.ShardSpec{Pool: w.seen.Pool.Name, Number: n}}
	shard.Namespace, shard.Name = w.seen.Pool.Namespace, workload.Shard(w.seen.Pool.Name, n)
	shard.Labels = workload.ShardLabels(w.seen.Store.Name, w.seen.Pool.Name, n)
	if err := controllerutil.SetControllerReference(w.seen.Pool, shard, w.Scheme()); err != nil {
		return nil, fmt.Errorf("make Shard %s: %w", shard.Name, err)
	}
	return shard, nil
}

func (w shardWriter) create(ctx context.Context, n int32) (*v1alpha1.Shard, error) {
	shard, err := w.wanted(n)
	if err != nil {
		return nil, err
	}
	if err := w.Create(ctx, shard, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return nil, fmt.Errorf("make Shard %s: %w", shard.Name, err)
	}
	return shard, nil
}

// restoreLabels restores the labels and the owner of a Shard if somebody removed them. The spec is immutable.
func (w shardWriter) restoreLabels(ctx context.Context, shard *v1alpha1.Shard) (*v1alpha1.Shard, error) {
	wanted, err := w.wanted(shard.Spec.Number)
	if err != nil {
		return nil, err
	}
	mended := shard.DeepCopy()
	if mended.Labels == nil {
		mended.Labels = map[string]string{}
	}
	maps.Copy(mended.Labels, wanted.Labels)
	if metav1.GetControllerOf(shard) == nil {
		others := slices.DeleteFunc(mended.OwnerReferences, func(o metav1.OwnerReference) bool {
			return o.UID == w.seen.Pool.UID
		})
		mended.OwnerReferences = slices.Concat(others, wanted.OwnerReferences)
	}
	if equality.Semantic.DeepEqual(shard.ObjectMeta, mended.ObjectMeta) {
		return mended, nil
	}
	if err := w.Patch(ctx, mended, step.IfUnchanged(shard), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return nil, fmt.Errorf("repair the labels and the owner of Shard %s: %w", shard.Name, err)
	}
	return mended, nil
}

// delete deletes exactly the Shard that was observed.
func (w shardWriter) delete(ctx context.Context, shard *v1alpha1.Shard) error {
	w.written.Delete(shard.UID)
	if err := w.Delete(ctx, shard, client.Preconditions{UID: &shard.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Shard %s: %w", shard.Name, err)
	}
	return nil
}

// reportChange reports a changed state of a shard. It always writes to the log, and it adds an event if the shard
// starts or stops needing an administrator.
func (h writer) reportChange(ctx context.Context, before v1alpha1.ShardState, s v1alpha1.ShardStatus) {
	n := step.News{Reason: string(s.State), Action: "Observe", Object: step.ShardObject(h.pool, s.Name)}
	switch {
	case s.State == before:
	case fleet.NeedsPerson(s.State):
		n.Warning, n.Message = true, fmt.Sprintf("shard %s: %s", s.Name, s.Message)
		step.Report(ctx, h.recorder, h.pool, n)
	case fleet.NeedsPerson(before):
		n.Message = fmt.Sprintf("shard %s is no longer %s", s.Name, before)
		step.Report(ctx, h.recorder, h.pool, n)
	default:
		n.Message = fmt.Sprintf("shard %s is %s%s", s.Name, s.State, step.Colon(s.Message))
		step.LogNews(ctx, n)
	}
}

// statusWriter writes the statuses of pools and Shards when a write is due. Safe for concurrent use.
type statusWriter struct {
	client.Client
	// written maps the UID of a pool or Shard to the time.Time of the last write of its status.
	written *sync.Map
	now     time.Time
}

// writeDue writes the status of an object if step.WriteDue says so and if the object has not changed since it was read,
// because an older status must not revert recorded values, such as the UUID of a volume. The argument next is a copy of
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
		gvk, _ := apiutil.GVKForObject(read, w.Scheme()) // cannot fail, because the patch has already looked up this kind
		return false, fmt.Errorf("write the status of %s %s: %w", gvk.Kind, read.GetName(), err)
	}
	w.written.Store(read.GetUID(), w.now)
	return true, nil
}
