package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// dataViews reads and writes views (placement.DataView) in etcd. The key of a view is viewsKey+ID. Each write of such a
// key also writes viewsMarkKey, so that those who follow all views watch a single key, which costs little while nothing
// changes.
type dataViews struct{ keys }

// DataViews are all views of a store at one revision.
type DataViews struct {
	List []placement.DataView
	At   int64 // revision at which the views last changed; 0 if there never was a view
}

// viewBytesMax limits the size of a view's value, because etcd refuses requests above 1.5 MiB.
const viewBytesMax = 1 << 20

// ErrViewTooLarge means that a view has too many groups to be stored.
var ErrViewTooLarge = errors.New("the view has too many groups")

// ErrTooManyViews means that the store has placement.DataViewsMax views.
var ErrTooManyViews = errors.New("the store has as many views as it may have")

// writeView applies an operation to the key of a view, under a condition. The operation is not applied to a store
// that is frozen or does not exist.
func (d *dataViews) writeView(ctx context.Context, do clientv3.Op, onlyIf ...clientv3.Cmp) (revision int64, err error) {
	answer, err := d.client.Txn(ctx).If(append(onlyIf, d.exists(), d.notFrozen())...).
		Then(do, clientv3.OpPut(d.prefix+viewsMarkKey, "")).Else(clientv3.OpGet(d.prefix + frozenKey)).Commit()
	switch {
	case err != nil:
		return 0, err
	case !answer.Succeeded && len(answer.Responses[0].GetResponseRange().Kvs) > 0:
		return 0, fmt.Errorf("%w: views stay as they are until that is put right", placement.ErrFrozen)
	case !answer.Succeeded:
		return 0, placement.ErrChanged
	}
	return answer.Header.Revision, nil
}

// PutDataView writes a view, provided that its key has not changed since it was read at v.Revision. If v.Revision is 0,
// the view must not exist. It returns the view with its new revision. The errors are ErrChanged, ErrFrozen,
// ErrTooManyViews, ErrViewTooLarge, or an error of etcd.
func (d *dataViews) PutDataView(ctx context.Context, v placement.DataView) (placement.DataView, error) {
	if err := v.Validate(); err != nil {
		return v, err
	}
	value := encode(v)
	if len(value) > viewBytesMax {
		return v, fmt.Errorf("%w: %d groups take %d bytes of at most %d: open several views", ErrViewTooLarge, len(v.Groups),
			len(value), viewBytesMax)
	}
	if v.Revision == 0 {
		answer, err := d.client.Get(ctx, d.prefix+viewsKey, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return v, fmt.Errorf("count views in etcd: %w", err)
		}
		if answer.Count >= placement.DataViewsMax {
			return v, fmt.Errorf("%w: it has %d, of at most %d: close some", ErrTooManyViews, answer.Count,
				placement.DataViewsMax)
		}
	}
	key := viewsKey + v.ID.String()
	revision, err := d.writeView(ctx, clientv3.OpPut(d.prefix+key, string(value)), d.at(key, v.Revision))
	if err != nil {
		return v, fmt.Errorf("write view %s to etcd: %w", v.ID, err)
	}
	v.Revision = revision
	return v, nil
}

// DeleteDataView removes a view, provided that its key has not changed since it was read at the given revision. Only
// this ends what the view holds.
func (d *dataViews) DeleteDataView(ctx context.Context, id uuid.UUID, revision int64) error {
	key := viewsKey + id.String()
	if _, err := d.writeView(ctx, clientv3.OpDelete(d.prefix+key), d.at(key, revision)); err != nil {
		return fmt.Errorf("remove view %s from etcd: %w", id, err)
	}
	return nil
}

// DataView reads one view. It returns false if the view does not exist.
func (d *dataViews) DataView(ctx context.Context, id uuid.UUID) (v placement.DataView, found bool, err error) {
	kv, err := d.get(ctx, viewsKey+id.String())
	if err != nil || kv.ModRevision == 0 {
		return v, false, err
	}
	v, err = decodeDataView(kv)
	return v, err == nil, err
}

func decodeDataView(kv *mvccpb.KeyValue) (v placement.DataView, err error) {
	if err = json.Unmarshal(kv.Value, &v); err == nil {
		err = v.Validate()
	}
	if err != nil {
		return v, fmt.Errorf("%w: key %s: %w", placement.ErrUnusable, kv.Key, err)
	}
	v.Revision = kv.ModRevision
	return v, nil
}

// DataViews lists all views. A key that cannot be read makes it fail: a view that is not known would lose its history.
func (d *dataViews) DataViews(ctx context.Context) (DataViews, error) {
	var out DataViews
	prefix := d.prefix + viewsKey
	// The mark and the views are read at one revision.
	mark, err := d.client.Get(ctx, d.prefix+viewsMarkKey)
	if err != nil {
		return out, fmt.Errorf("read views from etcd: %w", err)
	}
	out.At = only(mark.Kvs).ModRevision
	_, _, err = d.pages(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), mark.Header.Revision,
		func(kv *mvccpb.KeyValue) error {
			v, err := decodeDataView(kv)
			if err == nil {
				out.List = append(out.List, v)
			}
			return err
		})
	return out, err
}

// viewsLook is the interval at which views are looked for in addition to the watch, which may be broken.
const viewsLook = 2 * time.Second

// WatchDataViews sends all views, and then again after each change. It closes the channel when ctx is done. A slow
// reader receives only the newest state. While etcd does not respond, nothing is sent.
func (d *dataViews) WatchDataViews(ctx context.Context) <-chan DataViews {
	out := make(chan DataViews, 1)
	go func() {
		defer close(out)
		last := int64(-1)
		for tries := retries(); ctx.Err() == nil; tries.Wait(ctx) {
			began := time.Now()
			err := d.watchDataViews(ctx, &last, out) // after any error, the views are read again
			if errors.Is(err, placement.ErrUnusable) {
				d.logger.Error("views are not followed, and all history is kept", "error", err)
			}
			if time.Since(began) > retryMax {
				tries.Again()
			}
		}
	}()
	return out
}

func (d *dataViews) watchDataViews(ctx context.Context, last *int64, out chan DataViews) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	look := func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*viewsLook)
		defer cancel()
		mark, err := d.get(ctx, viewsMarkKey)
		if err != nil || mark.ModRevision == *last {
			return err
		}
		found, err := d.DataViews(ctx)
		if err != nil {
			return err
		}
		*last = found.At
		offer(out, found)
		return nil
	}
	changes := d.client.Watch(ctx, d.prefix+viewsMarkKey)
	tick := time.NewTicker(viewsLook)
	defer tick.Stop()
	for {
		if err := look(); err != nil {
			return err
		}
		select {
		case change, ok := <-changes:
			if !ok {
				return ctx.Err()
			}
			if err := change.Err(); err != nil {
				return err
			}
		case <-tick.C:
		}
	}
}
