package replica

import (
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group"
)

// brokenLog cannot read its entries.
type brokenLog struct {
	store
	err error
}

func (b brokenLog) Entries(_, _, _ uint64) ([]*raftpb.Entry, error) { return nil, b.err }

// Raft panics over any error but this one, and the replica has failed then until a restart.
func TestRaftOffersASnapshotWhereEntriesAreDamaged(t *testing.T) {
	damaged := fmt.Errorf("entries from index 7: %w", &group.DamageError{})
	if _, err := (storage{brokenLog{err: damaged}}).Entries(7, 8, 1); err != raft.ErrCompacted { //nolint:errorlint // as Raft compares
		t.Errorf("damaged entries: %v", err)
	}
	other := errors.New("other")
	if _, err := (storage{brokenLog{err: other}}).Entries(7, 8, 1); !errors.Is(err, other) {
		t.Errorf("another error: %v", err)
	}
}
