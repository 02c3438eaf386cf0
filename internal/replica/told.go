package replica

import (
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// A membership change is over only when a majority of the new members knows that it is. Raft counts votes by the membership that a member has
// applied, not by the newest one in its log. Where only the leader knows that the old membership is left, and is lost in that moment, the
// others still ask a majority of the old one, of which a member may be gone for good: then nobody is elected ever again, though only one
// of the new members is lost. So the leader puts an empty entry behind the change that it has applied, and says only when that one is
// committed that the change is over: whoever has the entry has heard with it that the change is committed. A leader that the change removes, because it came to
// lead in the midst of it, can propose nothing any more: it hands the lead over (yield), and its successor leaves the joint membership again or finds that it is left.
type told struct {
	due   bool   // the entry is to be proposed
	index uint64 // of the entry; 0: not known yet
	asked bool   // Raft has it
}

// pending tells that a majority may not know yet.
func (t told) pending() bool { return t.due || t.asked }

// tell is called with mu held when a change was applied that is not joint.
func (r *Replica) tell() {
	switch {
	case !r.leader: // one that has just lost the lead cannot know who knows: the change ends with an unknown outcome
	case len(r.conf.GetVoters()) > 1 || !isVoter(r.conf, r.opts.RaftID):
		r.told = told{due: true}
		r.schedule()
	default:
		r.toldAll()
	}
}

// proposeTold is called with mu held, and no Ready taken, as the last that proposes anything before one is.
func (r *Replica) proposeTold() {
	if !r.told.due {
		return
	}
	err := r.node.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: proto.Uint64(r.opts.RaftID), Entries: []*raftpb.Entry{{}}})
	if err == nil { // else, as while the lead is being handed over, the clock tries again
		r.told = told{asked: true}
	}
}

// noteTold is called with mu held, with the entries of a Ready.
func (r *Replica) noteTold(entries []*raftpb.Entry) {
	if r.told.asked && r.told.index == 0 {
		r.told.index = entries[len(entries)-1].GetIndex()
	}
}

// toldAll ends the change that is under way, where it is the one that was applied last. Called with mu held.
func (r *Replica) toldAll() {
	r.told = told{}
	if c := r.change; c != nil && c.index != 0 && c.index <= r.confIndex {
		r.endChange(nil)
	}
}
