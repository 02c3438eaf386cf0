package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// An etcd that was set back to an older backup says where groups were, not where they are (rule 9). Whoever notices
// freezes the store: from then on nobody moves, makes or deletes anything on the word of etcd, until the shards have
// written over it what is true. docs/placement.md says how.

// ErrFrozen says that etcd holds an older state of the store than was seen before. Nothing was written.
var ErrFrozen = errors.New("etcd was set back to an older state of this store")

// Mark is how far the placement of a store was seen: two of one store can be compared.
type Mark struct {
	Base uint64 // Meta.EpochBase: raised when an etcd was rebuilt or reconciled
	// Revision is that of the whole etcd, which every write raises, whoever makes it and whatever it is of.
	Revision int64
	// Content is the highest revision at which a key was written that is never deleted. It tells an older etcd also
	// where its revision was raised as it was restored.
	Content int64
	// ContentKey is the key that was written then, without the store's prefix; empty: not known. No later state of the
	// same etcd holds an earlier value of it, or none.
	ContentKey string
	Cluster    uint64 // id of etcd's cluster; 0: not known
}

// Behind says why what was seen before was later than this; empty: it was not.
func (m Mark) Behind(seen Mark) string {
	switch {
	case m.Base > seen.Base:
		return ""
	case m.Base < seen.Base:
		return fmt.Sprintf("it is from before it was last rebuilt or reconciled (epoch base %d, seen was %d)", m.Base,
			seen.Base)
	case m.Revision < seen.Revision:
		return fmt.Sprintf("its revision is %d, seen was %d", m.Revision, seen.Revision)
	case m.Content < seen.Content:
		return fmt.Sprintf("its newest key is of revision %d, seen was one of %d", m.Content, seen.Content)
	case m.Cluster != seen.Cluster && m.Cluster != 0 && seen.Cluster != 0:
		return fmt.Sprintf("it is cluster %x, before it was cluster %x", m.Cluster, seen.Cluster)
	}
	return ""
}

// Freeze says why a store is frozen, and for what it waits. Key "frozen".
type Freeze struct {
	By     string   `json:"by"` // who noticed
	Reason string   `json:"reason"`
	Since  string   `json:"since"` // RFC 3339
	Waits  []string `json:"waits,omitempty"`
}

// String says what is going on and what to do.
func (f Freeze) String() string {
	words := fmt.Sprintf(
		"etcd was set back to an older state (noticed by %s: %s). Nothing is moved, made or deleted until the shards have "+
			"written over it what is true; settled groups are read and written meanwhile", f.By, f.Reason)
	for i, w := range f.Waits {
		if i == 0 {
			words += ". It waits: "
		} else {
			words += "; "
		}
		words += w
	}
	return words
}

// Held says why nothing may be moved, made or deleted on the word of this view; empty: it may.
func (v View) Held() string {
	switch {
	case v.Freeze != nil:
		return v.Freeze.String()
	case v.SetBack != "":
		return "etcd was set back to an older state: " + v.SetBack
	}
	return ""
}

// Freeze freezes the store in etcd where it is not frozen yet.
func (s *Store) Freeze(ctx context.Context, by, reason string) error {
	value, err := json.Marshal(Freeze{By: by, Reason: reason, Since: time.Now().UTC().Format(time.RFC3339)})
	if err != nil {
		return fmt.Errorf("encode the freeze: %w", err)
	}
	if _, err := s.replace(ctx, frozenKey, value, s.notFrozen(), s.exists()); err != nil {
		return fmt.Errorf("write %s to etcd: %w", s.prefix+frozenKey, err)
	}
	return nil
}

// notFrozen is the condition of every write that acts on what etcd says.
func (k keys) notFrozen() clientv3.Cmp { return k.at(frozenKey, 0) }

// frozen is the error for a state that must not be acted on; nil: it may. Where this process is the first to notice, it
// freezes the store.
func (s *Store) frozen(ctx context.Context, st *state, by string) error {
	switch {
	case !st.hasMeta:
		return nil
	case st.view.Freeze != nil:
		return fmt.Errorf("%w: %s", ErrFrozen, st.view.Freeze)
	case st.setBack != "":
		if err := s.Freeze(ctx, by, st.setBack); err != nil {
			return err
		}
		return fmt.Errorf("%w: %s", ErrFrozen, Freeze{By: by, Reason: st.setBack})
	}
	return nil
}
