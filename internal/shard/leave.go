package shard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/vfs"
)

// trashEvery is how often it is looked for what is old enough to be deleted.
const trashEvery = 30 * time.Second

// leaveGroup takes a replica out of service that has left its group, and puts its files into the trash.
func (s *Shard) leaveGroup(ctx context.Context, g *groupReplica) error {
	s.setHealth(g, false)
	if err := g.close(ctx, false); err != nil {
		s.logger.Warn("closing a replica that has left its group", "group", g.name, "error", err)
	}
	s.mu.Lock()
	raftID, joining := g.raftID, g.joining()
	s.mu.Unlock()
	if joining {
		// Nothing in it counts.
		if err := removeAll(s.cfg.FS, g.dir); err != nil {
			return fmt.Errorf("removing what it gathered: %w", err)
		}
	} else if err := s.toTrash(g, raftID); err != nil {
		return err
	}
	s.mu.Lock()
	if s.groups[g.uuid] == g {
		delete(s.groups, g.uuid)
	}
	s.publish()
	s.mu.Unlock()
	s.steering.moved(g)
	s.logger.Info("a replica has left its group", "group", g.name, "raft_id", raftID, "joining", joining)
	return nil
}

// toTrash renames the folder of a group to trash/UUID-RAFTID-SECONDS.
func (s *Shard) toTrash(g *groupReplica, raftID uint64) error {
	trash := s.volume.TrashDir()
	if err := s.cfg.FS.MkdirAll(trash); err != nil {
		return fmt.Errorf("making the trash: %w", err)
	}
	to := path.Join(trash, fmt.Sprintf("%s-%016x-%d", g.uuid, raftID, time.Now().Unix()))
	if err := s.cfg.FS.Rename(g.dir, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("moving it to the trash: %w", err)
	}
	for _, dir := range []string{path.Dir(g.dir), trash} {
		if err := s.cfg.FS.SyncDir(dir); err != nil {
			return fmt.Errorf("moving it to the trash: %w", err)
		}
	}
	s.compactor.moreToFree()
	return nil
}

// emptyTrash deletes what has been in the trash for long enough; the compactor deletes sooner where room is short. What
// is there has left its group by a change that a majority of the others has committed, so nothing is lost with it; but
// where another copy is to take its place here, it stays until that is complete, as long as there is room.
func (s *Shard) emptyTrash(ctx context.Context) {
	tick := time.NewTicker(min(trashEvery, s.cfg.TrashDelay/2+time.Millisecond))
	defer tick.Stop()
	for {
		s.problems.note("emptying the trash", s.emptyTrashOnce(time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// emptyTrashOnce deletes what is old enough at a time.
func (s *Shard) emptyTrashOnce(now time.Time) error {
	return s.dropTrash(func(t *trashed) bool { return now.Sub(t.since) >= s.cfg.TrashDelay && !t.coming })
}

// trashed is the folder of a replica that has left its group.
type trashed struct {
	name   string
	since  time.Time
	coming bool // another copy of the group is to be here, and is not complete
}

// dropTrash deletes what may go of the trash, in the order in which it is missed least: what another copy replaces
// comes last, the older first. Nothing while what etcd says is not followed.
func (s *Shard) dropTrash(may func(t *trashed) bool) error {
	if s.isHeld() {
		return nil
	}
	s.trashing.Lock()
	defer s.trashing.Unlock()
	all, err := s.inTrash()
	if err != nil {
		return err
	}
	deleted := false
	for i := range all {
		if !may(&all[i]) {
			continue
		}
		if err := removeAll(s.cfg.FS, path.Join(s.volume.TrashDir(), all[i].name)); err != nil {
			return err
		}
		deleted = true
		s.logger.Info("deleted from the trash", "name", all[i].name)
	}
	if deleted {
		s.committer.RoomMade()
	}
	return nil
}

// inTrash lists what shards have put into the trash, in the order in which it may go.
func (s *Shard) inTrash() (all []trashed, err error) {
	names, err := s.cfg.FS.List(s.volume.TrashDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if since, ok := trashedAt(name); ok {
			all = append(all, trashed{name, since, s.isComing(name)})
		}
	}
	slices.SortStableFunc(all, func(a, b trashed) int {
		if a.coming != b.coming {
			return map[bool]int{false: -1, true: 1}[a.coming]
		}
		return a.since.Compare(b.since)
	})
	return all, nil
}

// isComing tells whether another copy of the group whose folder is in the trash by this name is to be here, and is not
// complete.
func (s *Shard) isComing(name string) bool {
	id, err := uuid.Parse(name[:36])
	if err != nil {
		return false
	}
	var sv *served
	wanted := false
	s.mu.Lock()
	for _, state := range s.view.Groups {
		wanted = wanted || state.UUID == id && len(s.membersHere(state)) > 0
	}
	if g := s.groups[id]; g != nil {
		sv = g.served.Load()
	}
	s.mu.Unlock()
	return wanted && (sv == nil || sv.replica.Status().Learner)
}

// trashedAt is when a folder was put into the trash; false: it was put there by somebody else, who will see to it.
func trashedAt(name string) (time.Time, bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 36+1+16 {
		return time.Time{}, false
	}
	seconds, err := strconv.ParseInt(name[i+1:], 10, 64)
	return time.Unix(seconds, 0), err == nil
}

// removeAll removes a folder and what is in it. Again after a crash: the rest. The manifest goes first, so that no half
// of a group is ever taken for one, and the replica file last, so that the rest is known as what it is.
func removeAll(fsys vfs.FS, dir string) error {
	if err := fsys.Remove(path.Join(dir, format.ManifestName)); err == nil {
		if err := fsys.SyncDir(dir); err != nil {
			return err
		}
	}
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == format.ReplicaName {
			continue
		}
		file := path.Join(dir, name)
		info, err := fsys.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && info.IsDir():
			err = removeAll(fsys, file)
		case err == nil:
			err = fsys.Remove(file)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if slices.Contains(names, format.ReplicaName) {
		if err := fsys.SyncDir(dir); err != nil {
			return err
		}
		if err := fsys.Remove(path.Join(dir, format.ReplicaName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := fsys.Remove(dir); err != nil {
		return err
	}
	return fsys.SyncDir(path.Dir(dir))
}
