package replica

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
)

// ErrLostEntries is the failure of a replica whose leader knows that it had more of the log than it has: its disk was set back, or has lost
// what was synced. What it acknowledged is counted on, and it may have forgotten votes, so it must never run again as what it was.
var ErrLostEntries = errors.New("the log lacks entries that this replica has acknowledged")

// hasLost tells ErrLostEntries where a heartbeat proves it: a leader names as committed no more than what the receiver has acknowledged
// as synced. Called with mu held.
func (r *Replica) hasLost(m *raftpb.Message) error {
	if m.GetType() != raftpb.MsgHeartbeat || m.GetTerm() < r.term {
		return nil
	}
	last, err := r.log.LastIndex()
	if err != nil || m.GetCommit() <= last {
		return err
	}
	return fmt.Errorf("%w: it ends at index %d, and index %d was committed by it", ErrLostEntries, last, m.GetCommit())
}
