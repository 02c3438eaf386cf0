package placement

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/base/longlock"
)

// Bound is the most groups that may exist whose names begin with a prefix. Groups beyond it that exist stay.
type Bound struct {
	Prefix string // empty: all groups of the store
	Most   int64
}

// LimitError says which bound does not allow one more group. It is ErrGroupLimit.
type LimitError struct {
	Bound
	Groups int64 // how many there are
}

// Error implements error.
func (e *LimitError) Error() string {
	whose := "of the store"
	if e.Prefix != "" {
		whose = fmt.Sprintf("whose names begin with %q", e.Prefix)
	}
	return fmt.Sprintf("%v: there are %d groups %s, of at most %d", ErrGroupLimit, e.Groups, whose, e.Most)
}

// Unwrap returns ErrGroupLimit.
func (e *LimitError) Unwrap() error { return ErrGroupLimit }

// CreateGroup creates a group if it does not exist, and returns the group that etcd holds afterwards. It returns a
// *LimitError if a bound does not allow one more group. Bounds are kept exactly, also when several processes create
// groups at the same moment, as long as all of them create groups within a bound by giving it.
func (s *Store) CreateGroup(ctx context.Context, g Group, bounds ...Bound) (there Group, created bool, err error) {
	g.Revision = 0
	for _, b := range bounds {
		// Without the lock each group that is created makes the attempts of all the others fail.
		lock, _ := s.making.LoadOrStore(b.Prefix, &longlock.Mutex{})
		lock.(*longlock.Mutex).Lock()
		defer lock.(*longlock.Mutex).Unlock()
	}
	there, err = s.putGroup(ctx, g, func(there Group) (rider, error) {
		if there.Revision != 0 || len(bounds) == 0 {
			return rider{}, nil
		}
		return s.within(ctx, bounds)
	})
	if errors.Is(err, ErrChanged) {
		there, err = s.Group(ctx, g.Name)
		return there, false, err
	}
	return there, err == nil, err
}

// within counts the groups of bounds. If each allows one more group, it returns the rider with which the group is
// created: it does not apply if another group was created within one of the bounds since they were counted.
func (s *Store) within(ctx context.Context, bounds []Bound) (out rider, err error) {
	ops := make([]clientv3.Op, 0, 2*len(bounds))
	for _, b := range bounds {
		ops = append(ops, clientv3.OpGet(s.prefix+withinKey+b.Prefix),
			clientv3.OpGet(s.prefix+groupsKey+b.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()))
	}
	answer, err := s.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return rider{}, fmt.Errorf("count groups in etcd: %w", err)
	}
	for i, b := range bounds {
		if n := answer.Responses[2*i+1].GetResponseRange().Count; n >= b.Most {
			return rider{}, &LimitError{Bound: b, Groups: n}
		}
		turn := only(answer.Responses[2*i].GetResponseRange().Kvs)
		out.onlyIf = append(out.onlyIf, s.at(withinKey+b.Prefix, turn.ModRevision))
		out.also = append(out.also, clientv3.OpPut(s.prefix+withinKey+b.Prefix, ""))
	}
	return out, nil
}
