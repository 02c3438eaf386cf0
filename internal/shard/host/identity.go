package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// Wanted holds conditions on a volume, which are checked before the volume is changed. A zero field requires nothing.
type Wanted struct {
	FileSystem   string   // type of the file system, as in Mount.FileSystem
	MountOptions []string // mount options that must be in force
	Store        uuid.UUID
	// Volume is the volume that this shard served before. If it is set, a blank or different volume is never initialized
	// and never served.
	Volume uuid.UUID
	// Adopt makes the shard take over a volume of the store that belongs to another shard, and also its groups if that
	// shard is not registered.
	Adopt bool
}

// Identity is a shard's identity, together with the volume that the shard requires.
type Identity struct {
	Name    string
	Address string // host:port under which others reach the shard
	Domain  string // failure domain
	Node    string // may be empty
	Zone    string // may be empty

	FS     vfs.FS
	Dir    string // the volume's folder
	Wanted Wanted

	Placement Registry
}

// Registry is the part of *registry.Store that a host needs. Package registry documents its methods.
type Registry interface {
	Meta(ctx context.Context) (placement.Meta, error)
	MayRegister(ctx context.Context, s placement.Shard) (registered placement.Step, err error)
	LastAnswer() (last time.Time, held string)
}

// heldError is the reason why a volume is not served, together with the resulting state of the shard.
type heldError struct {
	state recordv1.ShardState
	err   error
}

func (e *heldError) Error() string { return e.err.Error() }
func (e *heldError) Unwrap() error { return e.err }

func hold(state recordv1.ShardState, format string, args ...any) *heldError {
	return &heldError{state: state, err: fmt.Errorf(format, args...)}
}

// inspected holds the result of a read-only inspection of a folder.
type inspected struct {
	superblock volume.Superblock // zero if the folder is blank
	mount      volume.Mount
}

// inspect checks a volume's folder, and returns the reason if the volume must not be served. It writes nothing.
func (id *Identity) inspect() (seen inspected, held *heldError) {
	w := id.Wanted
	mount, err := volume.MountOf(id.FS, id.Dir)
	if err != nil {
		return seen, classify(expecting(w.Volume, err))
	}
	seen.mount = mount
	if err := mount.Check(w.FileSystem, w.MountOptions); err != nil {
		return seen, hold(recordv1.ShardState_SHARD_STATE_FILE_SYSTEM_MISMATCH, "volume %s: %w", id.Dir, err)
	}
	blank, err := volume.Blank(id.FS, id.Dir)
	switch {
	case err != nil:
		return seen, classify(expecting(w.Volume, err))
	case blank && w.Volume != uuid.Nil:
		return seen, hold(recordv1.ShardState_SHARD_STATE_DISK_LOST,
			"volume %s is blank, expected is volume %s: bring the disk back, or "+
				"give it up: then the shard may make a new volume", id.Dir, w.Volume)
	case blank:
		return seen, nil
	}
	sb, err := volume.FreshSuperblock(id.FS, id.Dir)
	if err != nil {
		return seen, classify(expecting(w.Volume, err))
	}
	seen.superblock = sb
	return seen, id.admit(sb)
}

// expecting adds the expected volume to the message of an error.
func expecting(wanted uuid.UUID, err error) error {
	if wanted == uuid.Nil {
		return err
	}
	return fmt.Errorf("%w (expected is volume %s)", err, wanted)
}

// admit refuses a volume other than the wanted one.
func (id *Identity) admit(sb volume.Superblock) *heldError {
	w := id.Wanted
	const foreign = recordv1.ShardState_SHARD_STATE_FOREIGN
	switch {
	case w.Store != uuid.Nil && sb.Store != w.Store:
		return hold(foreign,
			"volume %s: %w: it is volume %s of shard %q of store %s, wanted is store %s: give the shard its own disk",
			id.Dir, volume.ErrForeign, sb.Volume, sb.Shard, sb.Store, w.Store)
	case w.Volume != uuid.Nil && sb.Volume != w.Volume:
		return hold(foreign, "volume %s: it is volume %s of shard %q, expected is volume %s: are two disks swapped?",
			id.Dir, sb.Volume, sb.Shard, w.Volume)
	case sb.Shard != id.Name && !w.Adopt:
		return hold(foreign,
			"volume %s: %w: it is of shard %q (volume %s), this is shard %q: are two disks swapped? To take it over, "+
				"start with --adopt", id.Dir, volume.ErrOtherShard, sb.Shard, sb.Volume, id.Name)
	}
	return nil
}

// classify returns the state of the shard for an error from checking or opening a volume.
func classify(err error) *heldError {
	var held *heldError
	if errors.As(err, &held) {
		return held
	}
	state := recordv1.ShardState_SHARD_STATE_PENDING
	for _, c := range []struct {
		is    error
		state recordv1.ShardState
	}{
		{volume.ErrMount, recordv1.ShardState_SHARD_STATE_FILE_SYSTEM_MISMATCH},
		{volume.ErrForeign, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{volume.ErrOtherShard, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{volume.ErrNotEmpty, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{volume.ErrFormatVersion, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{placement.ErrNameTaken, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{placement.ErrRolledBack, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{volume.ErrDamaged, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.EIO, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.ENODEV, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.ENXIO, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.EUCLEAN, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.EBADMSG, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.ESTALE, recordv1.ShardState_SHARD_STATE_DISK_LOST},
	} {
		if errors.Is(err, c.is) {
			state = c.state
			break
		}
	}
	return &heldError{state: state, err: err}
}

// MayRegister asks etcd whether a volume will be allowed to register after it has been opened. It also returns the
// volume's step that is registered now. It first checks whether the folder is locked, because a second process on the
// same folder is a different error than a copy of the volume.
func (id *Identity) MayRegister(ctx context.Context, sb volume.Superblock) (registered placement.Step, err error) {
	if err := volume.InUse(id.FS, id.Dir); err != nil {
		return placement.Step{}, err
	}
	sb.Generation++
	return id.Placement.MayRegister(ctx, id.Registration(sb))
}

// Registration returns the shard's entry for etcd, for a volume in its current state.
func (id *Identity) Registration(sb volume.Superblock) placement.Shard {
	return placement.Shard{
		Name: id.Name, Address: id.Address, VolumeUUID: sb.Volume, Generation: sb.Generation, Step: placement.Step(sb.Step),
		Registered: placement.Step(sb.Registered), Domain: id.Domain, Node: id.Node, Zone: id.Zone, Weighs: true,
	}
}

// Renews reports whether an error means that the volume must get a new identity. This is the case if the volume was
// rolled back, and Wanted does not require a particular volume.
func (id *Identity) Renews(err error) bool {
	return errors.Is(err, placement.ErrRolledBack) && id.Wanted.Volume == uuid.Nil
}

// stillSame returns an error if a volume in use has changed since it was opened, or cannot be read.
func (id *Identity) stillSame(opened volume.Superblock) error {
	now, err := volume.FreshSuperblock(id.FS, id.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, volume.ErrNoVolume):
		return fmt.Errorf("volume %s (%s) is gone from under the shard: %w", id.Dir, opened.Volume, err)
	case err != nil:
		return fmt.Errorf("volume %s (%s) cannot be read any more: %w", id.Dir, opened.Volume, err)
	case now.Store != opened.Store || now.Volume != opened.Volume || now.Generation != opened.Generation:
		return fmt.Errorf("volume %s was %s of store %s, generation %d, and is now %s of store %s, generation %d", id.Dir,
			opened.Volume,
			opened.Store, opened.Generation, now.Volume, now.Store, now.Generation)
	}
	return nil
}

// Describe fills in the shard's identity, the wanted volume, and the volume's owner.
func (id *Identity) Describe(st *recordv1.Shard, sb volume.Superblock) {
	wanted := &id.Wanted
	st.Name, st.Address, st.Path = id.Name, id.Address, id.Dir
	st.WantedFileSystem, st.WantedMountOptions = wanted.FileSystem, wanted.MountOptions
	st.Node, st.Zone, st.Domain = id.Node, id.Zone, id.Domain
	for _, one := range []struct {
		to   *string
		from uuid.UUID
	}{
		{&st.WantedStoreUuid, wanted.Store}, {&st.WantedVolumeUuid, wanted.Volume},
		{&st.StoreUuid, sb.Store}, {&st.VolumeUuid, sb.Volume},
	} {
		if one.from != uuid.Nil {
			*one.to = one.from.String()
		}
	}
	st.VolumeShard, st.Generation = sb.Shard, sb.Generation
}

// DescribeVolume describes a volume's content, from its files alone.
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
		// A founder that is not reported to etcd has served no call. So it counts no more than one that is joining.
		p.RaftId, p.Joining = file.RaftID, file.Joining || file.Founder
		if file.Volume != sb.Volume || file.Store != sb.Store || file.Group != group {
			p.Foreign, p.StoreUuid = true, file.Store.String()
			p.Message = fmt.Sprintf("it was made on volume %s as one of group %s of store %s: a copy never runs", file.Volume,
				file.Group, file.Store)
		}
		if p.GetJoining() {
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
