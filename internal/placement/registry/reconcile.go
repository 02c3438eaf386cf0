package registry

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
)

// Reconcile overwrites the placement of a frozen store in etcd with the placement that the shards' volumes report. It
// never changes a volume. A group is accounted for if a majority of its voters was found, or if no shard ever had the
// group. When every group is accounted for, Reconcile ends the freeze. The argument silent describes the shards that
// did not respond.
func (s *Store) Reconcile(ctx context.Context, r rescue.Rebuilt, silent []string) (rescue.Reconciled, error) {
	st, err := s.list(ctx)
	if err != nil {
		return rescue.Reconciled{}, err
	}
	if !st.hasMeta || st.view.Freeze == nil || st.view.Meta.StoreUUID != r.Meta.StoreUUID {
		return rescue.Reconciled{}, nil
	}
	c := &reconciler{keys: s.keys, st: st}
	corrections, waits := r.Corrections(placement.View{Meta: st.view.Meta, Groups: st.groups, Targets: st.targets,
		Unusable: st.unusable})
	for _, correction := range corrections {
		if err := c.put(ctx, correction.Group, correction.Target); err != nil {
			return c.done, err
		}
	}
	if len(waits) > 0 {
		c.done.Waits = slices.Concat(waits, silent)
		return c.done, c.say(ctx)
	}
	return c.done, c.lift(ctx, r.Meta.EpochBase)
}

// Unreconciled records in etcd why the store cannot be reconciled now.
func (s *Store) Unreconciled(ctx context.Context, why ...string) error {
	st, err := s.list(ctx)
	if err != nil || st.view.Freeze == nil {
		return err
	}
	c := &reconciler{keys: s.keys, st: st, done: rescue.Reconciled{Waits: why}}
	return c.say(ctx)
}

// reconciler overwrites the placement in etcd, starting from one listing.
type reconciler struct {
	keys

	st   *state
	done rescue.Reconciled
}

// put writes a group and its target, provided that neither has changed since the listing. It also replaces keys whose
// values are invalid.
func (c *reconciler) put(ctx context.Context, g placement.Group, target placement.Target) error {
	before := pair{c.st.groups[g.Name], c.st.targets[g.Name]}
	before.group.Revision = c.st.revisionOf(groupsKey + g.Name)
	before.target.Revision = c.st.revisionOf(targetsKey + g.Name)
	answer, err := c.client.Txn(ctx).
		If(append(c.unchanged(g.Name, before), clientv3.Compare(clientv3.CreateRevision(c.prefix+frozenKey), ">", 0))...).
		Then(append(c.wakeOps(g.Name, before.concerned(), concerned(g, target)),
			c.opPut(groupsKey+g.Name, g), c.opPut(targetsKey+g.Name, target),
			clientv3.OpDelete(c.prefix+deletedKey+g.Name))...).
		Commit()
	if err != nil {
		return fmt.Errorf("write group %s to etcd: %w", g.Name, err)
	}
	if !answer.Succeeded {
		return fmt.Errorf("%w: %s", placement.ErrChanged, g.Name)
	}
	c.done.Written++
	return nil
}

// say records in etcd what the freeze still waits for, if that differs from the recorded list.
func (c *reconciler) say(ctx context.Context) error {
	f := *c.st.view.Freeze
	waits := rescue.FirstWords(c.done.Waits)
	if slices.Equal(f.Waits, waits) {
		return nil
	}
	f.Waits = waits
	if _, err := c.replace(ctx, frozenKey, encode(f), c.at(frozenKey, c.st.freezeAt)); err != nil {
		return fmt.Errorf("write %s to etcd: %w", c.prefix+frozenKey, err)
	}
	return nil
}

// lift ends the freeze, and raises the epoch above every epoch that a process may have seen. All processes then follow
// etcd again.
func (c *reconciler) lift(ctx context.Context, base uint64) error {
	meta := c.st.view.Meta
	meta.EpochBase = max(base, meta.EpochBase+rescue.EpochJump)
	answer, err := c.client.Txn(ctx).If(c.at(frozenKey, c.st.freezeAt), c.at(metaKey, c.st.metaRevision)).
		Then(c.opPut(metaKey, meta), clientv3.OpDelete(c.prefix+frozenKey)).Commit()
	if err != nil {
		return fmt.Errorf("lift the freeze in etcd: %w", err)
	}
	if !answer.Succeeded {
		return fmt.Errorf("lifting the freeze: %w", placement.ErrChanged)
	}
	return nil
}
