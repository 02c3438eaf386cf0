package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// An etcd that was set back to an older backup says where groups were, not where they are (rule 9). The first process
// that notices freezes the store. From then on, no process moves, creates or deletes anything on the basis of etcd,
// until etcd was overwritten with the true state, which the shards report. docs/placement.md describes the procedure.

// ErrFrozen says that etcd holds an older state of the store than one that was seen before. Nothing was written.
var ErrFrozen = errors.New("etcd was set back to an older state of this store")

// Mark is the state up to which a process has seen the placement of a store. Two marks of one store can be compared.
type Mark struct {
	Base uint64 // Meta.EpochBase, which grows when etcd is rebuilt or reconciled
	// Revision is the revision of the whole etcd. Every write by any client to any key increases it.
	Revision int64
	// Content is the highest revision at which a key that is never deleted was written. It reveals an older etcd even
	// if the restore raised etcd's revision.
	Content int64
	// ContentKey is the key that was written at revision Content, without the store's prefix. It is empty if it is
	// unknown. In every later state of the same etcd the key exists, with this value or a newer one.
	ContentKey string
	Cluster    uint64 // id of etcd's cluster; 0 if unknown
}

// Behind says why the earlier mark seen is later than this mark. The result is empty if that mark is not later.
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

// Freeze says why a store is frozen and what it waits for. It is stored under the key "frozen".
type Freeze struct {
	By     string   `json:"by"` // the process that noticed the setback
	Reason string   `json:"reason"`
	Since  string   `json:"since"` // RFC 3339
	Waits  []string `json:"waits,omitempty"`
}

// String describes the state and says what to do.
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

// Held says why nothing may be moved, created or deleted on the basis of this view. The result is empty if that is
// allowed.
func (v View) Held() string {
	switch {
	case v.Freeze != nil:
		return v.Freeze.String()
	case v.SetBack != "":
		return "etcd was set back to an older state: " + v.SetBack
	}
	return ""
}

// Freeze freezes the store in etcd unless it is already frozen.
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

// notFrozen returns the condition of every write that relies on the content of etcd.
func (k keys) notFrozen() clientv3.Cmp { return k.at(frozenKey, 0) }

// frozen returns the error for a state that must not be used, or nil. If this process is the first to notice such a
// state, it freezes the store.
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
