package replica

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/consensus/replica/writes"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

var errLeadLost = errors.New("the leadership was lost")

// committedEarly returns this Ready's committed entries if all of them were already in the log before this Ready. If
// one of them is a new entry of this Ready, it returns nil. Entries that were in the log can be applied, and their
// writes answered, before the Ready is synced.
func (rd *round) committedEarly() []*raftpb.Entry {
	committed, entries := rd.ready.CommittedEntries, rd.ready.Entries
	if n := len(committed); n > 0 && len(entries) > 0 && committed[n-1].GetIndex() >= entries[0].GetIndex() {
		return nil
	}
	return committed
}

// makeVisible makes committed entries visible.
func (rd *round) makeVisible(committed []*raftpb.Entry) error {
	if len(committed) == 0 {
		return nil
	}
	rd.requests, rd.recorded = rd.requests[:0], 0
	err := rd.log.Apply(committed[len(committed)-1].GetIndex(), func(e *format.Entry) {
		if e.RequestID != ([16]byte{}) && (rd.seams.Off.Keeps(rules.Requests) || rd.leads(e)) {
			rd.requests = append(rd.requests, format.RequestOf(e))
		}
		rd.seams.applied(e)
	})
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	return nil
}

// applyEarly finishes applying the committed entries that were in the log before this Ready.
func (rd *round) applyEarly() error {
	if len(rd.committedEarly()) == 0 {
		return nil
	}
	if err := rd.applyReady(); err != nil {
		return err
	}
	rd.ready.CommittedEntries = nil
	return nil
}

// applyReady finishes applying the committed entries, which are already visible. It records the membership changes
// among them. Then it answers the writes of these entries, and the writes that are lost because the leadership was
// lost.
func (rd *round) applyReady() error {
	committed := rd.ready.CommittedEntries
	for ; rd.recorded < len(committed); rd.recorded++ {
		e := committed[rd.recorded]
		if e.GetType() == raftpb.EntryNormal {
			continue
		}
		if err := rd.changeMembers(e); err != nil {
			return fmt.Errorf("apply index %d: %w", e.GetIndex(), err)
		}
	}
	if len(committed) > 0 || rd.ready.SoftState != nil || !raft.IsEmptyHardState(rd.ready.HardState) ||
		len(rd.ready.ReadStates) > 0 {
		rd.complete(committed)
	}
	return nil
}

// leads reports whether this replica is the leader and has written the entry in the current term.
func (rd *round) leads(e *format.Entry) bool {
	c := rd.state.lock()
	defer c.unlock()
	return c.node.leader && e.Term == c.node.term
}

// complete answers the writes whose entries were committed and applied. Then it answers the writes that are lost
// because the leadership was lost.
func (rd *round) complete(committed []*raftpb.Entry) {
	rd.answered = rd.completeCore(committed)
	rd.requests = rd.requests[:0]
	writes.Wake(rd.answered)
}

func (rd *round) completeCore(committed []*raftpb.Entry) (answered []*Pending) {
	c := rd.state.lock()
	defer c.unlock()
	c.complete(committed, rd.requests, &rd.syncs)
	return c.writes.Answered(rd.answered)
}

// changeMembers applies a membership change. It skips a change that the log had already recorded when this replica
// started, because the membership may become durable before the commit index.
func (rd *round) changeMembers(e *raftpb.Entry) error {
	if e.GetIndex() <= rd.firstConf {
		return nil
	}
	if rd.unrecorded == nil {
		change, err := changeOf(e)
		if err != nil {
			return fmt.Errorf("membership change: %w", err)
		}
		rd.unrecorded = rd.applyChange(change, e.GetIndex())
	}
	if err := rd.log.SetConf(rd.unrecorded, e.GetIndex()); err != nil {
		return fmt.Errorf("membership change: %w", err)
	}
	rd.unrecorded = nil
	return nil
}

func (rd *round) applyChange(change raftpb.ConfChangeI, at uint64) *raftpb.ConfState {
	c := rd.state.lock()
	defer c.unlock() // unlock even if Raft panics, which it does if it cannot apply the change
	conf := c.node.raft.ApplyConfChange(change)
	c.setMembers(conf, at)
	c.observe()
	return conf
}

// changeOf decodes the membership change that an entry contains.
func changeOf(e *raftpb.Entry) (raftpb.ConfChangeI, error) {
	if e.GetType() == raftpb.EntryConfChange {
		first := &raftpb.ConfChange{}
		return first, proto.Unmarshal(e.Data, first)
	}
	second := &raftpb.ConfChangeV2{}
	return second, proto.Unmarshal(e.Data, second)
}
