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

// applyEarly does the work that need not wait for the sync of the same Ready: it sends messages, and applies
// committed entries that are already in the log.
func (rd *round) applyEarly() error {
	if rd.done {
		return nil
	}
	if !rd.early {
		rd.send(rd.ready.Messages, false)
		rd.early = true
	}
	committed, entries := rd.ready.CommittedEntries, rd.ready.Entries
	if n := len(committed); n > 0 && (len(entries) == 0 || committed[n-1].GetIndex() < entries[0].GetIndex()) {
		if err := rd.apply(committed); err != nil {
			return err
		}
		rd.ready.CommittedEntries = nil
	}
	rd.done = true
	return nil
}

func (rd *round) applyReady() error {
	if len(rd.ready.CommittedEntries) == 0 {
		if rd.ready.SoftState != nil || !raft.IsEmptyHardState(rd.ready.HardState) || len(rd.ready.ReadStates) > 0 {
			rd.complete(nil)
		}
		return nil
	}
	if err := rd.apply(rd.ready.CommittedEntries); err != nil {
		return err // the entries remain in the Ready: after a lack of space, applying continues where it stopped
	}
	rd.ready.CommittedEntries = nil
	return nil
}

// apply makes committed entries visible, and then answers their writes. After format.ErrNoSpace it must be called
// again with the same entries, and continues where it stopped.
func (rd *round) apply(committed []*raftpb.Entry) error {
	if !rd.visible {
		if err := rd.makeVisible(committed[len(committed)-1].GetIndex()); err != nil {
			return fmt.Errorf("apply: %w", err)
		}
		rd.visible, rd.behind = true, 0
	}
	for ; rd.behind < len(committed); rd.behind++ {
		e := committed[rd.behind]
		if e.GetType() == raftpb.EntryNormal {
			continue
		}
		if err := rd.changeMembers(e); err != nil {
			return fmt.Errorf("apply index %d: %w", e.GetIndex(), err)
		}
	}
	rd.visible = false
	rd.complete(committed)
	return nil
}

// makeVisible applies the entries up to last.
func (rd *round) makeVisible(last uint64) error {
	rd.requests = rd.requests[:0]
	return rd.log.Apply(last, func(e *format.Entry) {
		if e.RequestID != ([16]byte{}) && (rd.seams.Off.Keeps(rules.Requests) || rd.leads(e)) {
			rd.requests = append(rd.requests, format.RequestOf(e))
		}
		rd.seams.applied(e)
	})
}

// leads reports whether this replica has written the entry as the leader of the current term.
func (rd *round) leads(e *format.Entry) bool {
	c := rd.state.lock()
	defer c.unlock()
	return c.node.leader && e.Term == c.node.term
}

// complete answers the writes among committed entries that were applied, and then the writes that were lost with the
// leadership.
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

// changeMembers applies a membership change, unless the log had recorded the change when this replica started: the
// membership may become durable before the commit index.
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
	defer c.unlock() // if Raft cannot apply the change, it panics
	conf := c.node.raft.ApplyConfChange(change)
	c.setMembers(conf, at)
	c.observe()
	return conf
}

// changeOf decodes the membership change in an entry.
func changeOf(e *raftpb.Entry) (raftpb.ConfChangeI, error) {
	if e.GetType() == raftpb.EntryConfChange {
		first := &raftpb.ConfChange{}
		return first, proto.Unmarshal(e.Data, first)
	}
	second := &raftpb.ConfChangeV2{}
	return second, proto.Unmarshal(e.Data, second)
}
