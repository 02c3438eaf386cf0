package host

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// DescribeVolume describes the content of a volume. It reads only its files.
func (id *Identity) DescribeVolume(sb volume.Superblock) (*recordv1.DescribeVolumeResponse, error) {
	out := &recordv1.DescribeVolumeResponse{
		Shard: id.Name, VolumeUuid: sb.Volume.String(), Generation: sb.Generation, VolumeShard: sb.Shard,
		StoreUuid: sb.Store.String(),
		Address:   id.Address, Step: sb.Step.Number, StepNonce: sb.Step.Nonce.String(),
	}
	facts, err := volume.ReadFacts(id.FS, id.Dir)
	switch {
	case err == nil && facts.Store == sb.Store:
		out.Facts = &recordv1.StoreFacts{
			Routing: facts.Routing, Groups: int32(facts.Groups), Copies: int32(facts.Copies), GroupsMax: int32(facts.GroupsMax),
			Created: facts.Created, Epoch: facts.Epoch,
		}
	case err != nil && !errors.Is(err, volume.ErrNoFacts):
		return nil, err
	}
	groups, err := volume.GroupsIn(id.FS, id.Dir)
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		out.Groups = append(out.Groups, id.groupFacts(sb, group))
	}
	slices.SortFunc(out.Groups, func(a, b *recordv1.GroupFacts) int {
		return cmp.Or(cmp.Compare(a.GetGroup(), b.GetGroup()), cmp.Compare(a.GetUuid(), b.GetUuid()))
	})
	return out, nil
}

// groupFacts reads the manifest and the replica file of a group.
func (id *Identity) groupFacts(sb volume.Superblock, group uuid.UUID) *recordv1.GroupFacts {
	p := &recordv1.GroupFacts{Uuid: group.String()}
	dir := volume.GroupDirIn(id.Dir, group)
	file, found, err := format.ReadReplicaFile(id.FS, dir)
	if err != nil {
		p.Message = err.Error()
		return p
	}
	if found {
		p.RaftId, p.Joining = file.RaftID, file.Joining
		if file.Volume != sb.Volume || file.Store != sb.Store || file.Group != group {
			p.Foreign, p.StoreUuid = true, file.Store.String()
			p.Message = fmt.Sprintf("it was made on volume %s as one of group %s of store %s: a copy never runs", file.Volume,
				file.Group, file.Store)
		}
		if file.Joining {
			p.StoreUuid = file.Store.String()
			return p
		}
	}
	m, err := format.ReadManifest(id.FS, dir)
	if err == nil && m.Identity.Group != group {
		err = fmt.Errorf("the folder of group %s holds group %s", group, m.Identity.Group)
	}
	if err != nil {
		p.Message, p.RaftId = err.Error(), 0
		return p
	}
	p.Group, p.StoreUuid = m.Identity.Name, m.Identity.Store.String()
	p.Term, p.CommittedIndex, p.ConfIndex = m.HardState.Term, m.HardState.Commit, m.ConfIndex
	p.Voters, p.Learners, p.VotersOutgoing = m.Conf.GetVoters(), format.LearnersOf(m.Conf), m.Conf.GetVotersOutgoing()
	p.Ended = format.IsEnded(m.Conf)
	if !found && len(p.GetVoters()) == 1 {
		p.RaftId = p.GetVoters()[0]
	}
	return p
}
