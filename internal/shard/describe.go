package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/volume"
)

// describe fills in what was asked for and whose the volume is.
func (st *Status) describe(cfg *Config, wanted Wanted, sb volume.Superblock) {
	st.State = st.state.Word()
	st.WantedFileSystem, st.WantedMountOptions = wanted.FileSystem, wanted.MountOptions
	st.Node, st.Zone, st.Domain, st.Medium = cfg.Node, cfg.Zone, cfg.Domain, string(cfg.Medium)
	for _, id := range []struct {
		to   *string
		from uuid.UUID
	}{
		{&st.WantedStoreUUID, wanted.Store}, {&st.WantedVolumeUUID, wanted.Volume},
		{&st.StoreUUID, sb.Store}, {&st.VolumeUUID, sb.Volume},
	} {
		if id.from != uuid.Nil {
			*id.to = id.from.String()
		}
	}
	st.VolumeShard, st.Generation = sb.Shard, sb.Generation
}

// state of a shard whose volume is open, and why.
func (s *Shard) state() (recordv1.ShardState, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.memory != nil:
		return recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, s.memory.Error()
	case !s.load.begun():
		return recordv1.ShardState_SHARD_STATE_PENDING, "it waits for etcd's first answer"
	case s.load.endedAt.IsZero():
		return recordv1.ShardState_SHARD_STATE_LOADING, ""
	case s.view.States[s.cfg.Name] == placement.Draining:
		return recordv1.ShardState_SHARD_STATE_DRAINING, ""
	}
	return recordv1.ShardState_SHARD_STATE_SERVING, ""
}

// refreshHealth tells the health service about the shard as a whole.
func (s *Shard) refreshHealth() {
	state, _ := s.state()
	st := grpc_health_v1.HealthCheckResponse_SERVING
	if state == recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL {
		st = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	s.health.SetServingStatus("", st)
	s.health.SetServingStatus(recordv1.RecordService_ServiceDesc.ServiceName, st)
}

// shardOf makes AdminService's row of a status.
func shardOf(st Status) *recordv1.Shard {
	p := &recordv1.Shard{
		Name: st.Name, Address: st.Address, Alive: true, VolumeUuid: st.VolumeUUID, Generation: st.Generation,
		Path: st.Path, FileSystem: st.FileSystem, MountOptions: st.MountOptions, Source: st.Source,
		Rotational: st.Rotational, CapacityBytes: st.CapacityBytes, FreeBytes: st.FreeBytes,
		ReserveBytes: st.ReserveBytes, MemoryNeedBytes: st.MemoryNeedBytes, MemoryLimitBytes: st.MemoryLimitBytes,
		Residency: st.Residency, Groups: int32(len(st.Groups)), Load: loadOf(st.Load), Version: st.Version,
		State: st.state, Message: st.Message, WantedFileSystem: st.WantedFileSystem, WantedMountOptions: st.WantedMountOptions,
		StoreUuid: st.StoreUUID, WantedStoreUuid: st.WantedStoreUUID, WantedVolumeUuid: st.WantedVolumeUUID, VolumeShard: st.VolumeShard,
		Node: st.Node, Zone: st.Zone, Domain: st.Domain, Medium: st.Medium, MemoryUsedBytes: st.MemoryUsedBytes, Problems: st.Problems,
	}
	if slow := st.Slow.Syncs; len(slow) > 0 {
		newest := &slow[0]
		ended := time.Unix(0, newest.BeganUnixNs+newest.DurationNs)
		p.SlowSyncs = &recordv1.SlowSyncs{
			Total: st.Slow.SyncsTotal, NewestSeconds: time.Duration(newest.DurationNs).Seconds(), NewestSecondsAgo: max(0, time.Since(ended).Seconds()),
			NewestFile: newest.Kind,
		}
	}
	for _, g := range st.Groups {
		if g.Leader {
			p.Leaders++
		}
	}
	return p
}

// DescribeVolume implements AdminService.
func (s *adminServer) DescribeVolume(context.Context, *recordv1.DescribeVolumeRequest) (*recordv1.DescribeVolumeResponse, error) {
	out, err := describeVolume(&s.cfg, s.volume.Superblock())
	if err != nil {
		return nil, fail(codes.FailedPrecondition, reasonNotServing, "shard %s: %v", s.cfg.Name, err)
	}
	out.Address = s.address
	setStep(out, s.volume.Step())
	s.mu.Lock()
	epoch := s.view.Epoch
	groups := make(map[string]*groupReplica, len(s.groups))
	for id, g := range s.groups {
		groups[id.String()] = g
	}
	s.mu.Unlock()
	if out.GetFacts() != nil {
		out.Facts.Epoch = max(out.GetFacts().GetEpoch(), epoch)
	}
	for _, p := range out.GetGroups() {
		if g := groups[p.GetUuid()]; g != nil {
			s.describeServed(p, g)
		}
	}
	return out, nil
}

// describeServed adds what is newer in memory than in the manifest.
func (s *Shard) describeServed(p *recordv1.GroupFacts, g *groupReplica) {
	sv := g.served.Load()
	if sv == nil {
		return
	}
	s.mu.Lock()
	p.RaftId = g.raftID
	s.mu.Unlock()
	p.ConfIndex = sv.log.ConfIndex()
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

// describeVolume reads from the files alone what a volume holds.
func describeVolume(cfg *Config, sb volume.Superblock) (*recordv1.DescribeVolumeResponse, error) {
	out := &recordv1.DescribeVolumeResponse{
		Shard: cfg.Name, VolumeUuid: sb.Volume.String(), Generation: sb.Generation, VolumeShard: sb.Shard, StoreUuid: sb.Store.String(),
	}
	setStep(out, sb.Step)
	facts, err := volume.ReadFacts(cfg.FS, cfg.Dir)
	switch {
	case err == nil && facts.Store == sb.Store:
		out.Facts = &recordv1.StoreFacts{
			Routing: facts.Routing, Groups: int32(facts.Groups), Copies: int32(facts.Copies), GroupsMax: int32(facts.GroupsMax),
			Created: facts.Created, Epoch: facts.Epoch,
		}
	case err != nil && !errors.Is(err, volume.ErrNoFacts):
		return nil, err
	}
	ids, err := volume.GroupsIn(cfg.FS, cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		out.Groups = append(out.Groups, groupFacts(cfg, sb, id))
	}
	slices.SortFunc(out.Groups, func(a, b *recordv1.GroupFacts) int {
		return cmp.Or(cmp.Compare(a.GetGroup(), b.GetGroup()), cmp.Compare(a.GetUuid(), b.GetUuid()))
	})
	return out, nil
}

func setStep(out *recordv1.DescribeVolumeResponse, step volume.Step) {
	out.Step, out.StepNonce = step.Number, step.Nonce.String()
}

// groupFacts reads the manifest and the replica file of a group.
func groupFacts(cfg *Config, sb volume.Superblock, id uuid.UUID) *recordv1.GroupFacts {
	p := &recordv1.GroupFacts{Uuid: id.String()}
	dir := volume.GroupDirIn(cfg.Dir, id)
	file, found, err := group.ReadReplicaFile(cfg.FS, dir)
	if err != nil {
		p.Message = err.Error()
		return p
	}
	if found {
		p.RaftId, p.Joining = file.RaftID, file.Joining
		if file.Volume != sb.Volume || file.Store != sb.Store || file.Group != id {
			p.Foreign, p.StoreUuid = true, file.Store.String()
			p.Message = fmt.Sprintf("it was made on volume %s as one of group %s of store %s: a copy never runs", file.Volume, file.Group, file.Store)
		}
		if file.Joining {
			p.StoreUuid = file.Store.String()
			return p
		}
	}
	m, err := group.ReadManifest(cfg.FS, dir)
	if err == nil && m.Identity.Group != id {
		err = fmt.Errorf("the folder of group %s holds group %s", id, m.Identity.Group)
	}
	if err != nil {
		p.Message, p.RaftId = err.Error(), 0
		return p
	}
	p.Group, p.StoreUuid = m.Identity.Name, m.Identity.Store.String()
	p.Term, p.CommittedIndex, p.ConfIndex = m.HardState.Term, m.HardState.Commit, m.ConfIndex
	p.Voters, p.Learners, p.VotersOutgoing = m.Conf.GetVoters(), learnersOf(m.Conf), m.Conf.GetVotersOutgoing()
	if !found && len(p.GetVoters()) == 1 {
		p.RaftId = p.GetVoters()[0]
	}
	return p
}

// learnersOf are all, also those that are voters until both memberships have agreed.
func learnersOf(conf *raftpb.ConfState) []uint64 {
	return slices.Concat(conf.GetLearners(), conf.GetLearnersNext())
}
