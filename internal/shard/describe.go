package shard

import (
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
)

// describeFacts adds what is newer in memory than in the manifest.
func (sv *served) describeFacts(p *recordv1.GroupFacts) {
	p.RaftId, p.ConfIndex = sv.raftID, sv.log.ConfIndex()
	stats := sv.log.Stats()
	p.Leader, p.Records, p.StoredBytes = sv.replica.Status().Leader, stats.Records, stats.StoredBytes
	hard, conf, err := sv.log.InitialState()
	if err != nil {
		p.Message = err.Error()
		return
	}
	p.Voters, p.Learners, p.Term, p.CommittedIndex = conf.GetVoters(), learnersOf(conf), hard.GetTerm(), hard.GetCommit()
	p.VotersOutgoing = conf.GetVotersOutgoing()
}

// learnersOf are all, also those that are voters until both memberships have agreed.
func learnersOf(conf *raftpb.ConfState) []uint64 {
	return slices.Concat(conf.GetLearners(), conf.GetLearnersNext())
}
