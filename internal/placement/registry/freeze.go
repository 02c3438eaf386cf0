package registry

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// Freeze freezes the store in etcd, unless it is frozen already.
func (s *Store) Freeze(ctx context.Context, by, reason string) error {
	value := encode(placement.Freeze{By: by, Reason: reason, Since: time.Now().UTC().Format(time.RFC3339)})
	if _, err := s.replace(ctx, frozenKey, value, s.notFrozen(), s.exists()); err != nil {
		return fmt.Errorf("write %s to etcd: %w", s.prefix+frozenKey, err)
	}
	return nil
}

// notFrozen returns the condition that the store is not frozen. Every write that relies on the content of etcd must
// have this condition.
func (k keys) notFrozen() clientv3.Cmp { return k.at(frozenKey, 0) }

// frozen returns an error if the state must not be used, and nil otherwise. If this process is the first to notice
// such a state, it also freezes the store.
func (s *Store) frozen(ctx context.Context, st *state, by string) error {
	switch {
	case !st.hasMeta:
		return nil
	case st.view.Freeze != nil:
		return fmt.Errorf("%w: %s", placement.ErrFrozen, st.view.Freeze)
	case st.setBack != "":
		if err := s.Freeze(ctx, by, st.setBack); err != nil {
			return err
		}
		return fmt.Errorf("%w: %s", placement.ErrFrozen, placement.Freeze{By: by, Reason: st.setBack})
	}
	return nil
}
