package stores

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/peers/store"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// sheafGroups is the default number of groups in `sheaf dev`.
const sheafGroups = 16

// sheafKinds returns two variants of Sheaf. The one with the default number of groups is compared with the peers. The
// other one has a single group.
func sheafKinds() []store.Kind {
	const settings = "of one copy: Raft, committer, log and index as in a shard; fdatasync before an answer; start-up " +
		"and warm reads Resident, cold reads Index; 1 version kept"
	kind := func(name string, groups int) store.Kind {
		return store.Kind{
			Name: name, Version: "this tree", Ours: true, Settings: fmt.Sprintf("groups: %d, ", groups) + settings,
			Open: func(dir string, o store.Options) (store.Store, error) { return openSheaf(dir, groups, o) },
		}
	}
	return []store.Kind{kind("Sheaf", sheafGroups), kind("Sheaf with one group", 1)}
}

// sheafStore uses a volume as a shard does, without gRPC.
type sheafStore struct {
	committer *replica.Committer
	journal   *journal.Journal
	loader    *segio.Loader
	logs      []*group.Log
	replicas  []*replica.Replica
	resident  bool
}

func openSheaf(dir string, groups int, o store.Options) (_ store.Store, err error) {
	ctx := context.Background()
	s := &sheafStore{
		committer: replica.NewCommitter(), loader: segio.NewLoader(segio.LoaderOptions{}), resident: o.InMemory,
		logs: make([]*group.Log, groups), replicas: make([]*replica.Replica, groups),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := replay(dir, groups); err != nil {
		return s, err
	}
	s.journal = journal.New(journal.Options{FS: vfs.OS{}, Dir: dir})
	return s, drive.Parallel(groups, func(i int) error { return s.openGroup(ctx, dir, i) })
}

// replay writes the content of a journal to the segments of the groups and removes the journal, as a shard does when it
// starts.
func replay(dir string, groups int) error {
	folders, ids := map[uuid.UUID]string{}, make([]uuid.UUID, groups)
	for i := range groups {
		ids[i] = groupID(strconv.Itoa(i))
		folders[ids[i]] = filepath.Join(dir, strconv.Itoa(i))
	}
	_, err := journal.Replay(vfs.OS{}, dir, journal.Target{
		Groups: func() ([]uuid.UUID, error) { return ids, nil },
		Apply: func(id uuid.UUID, share journal.Share) error {
			folder, known := folders[id]
			if !known {
				return fmt.Errorf("the journal knows a group %s", id)
			}
			return group.Redo(vfs.OS{}, folder, share)
		},
	})
	return err
}

func groupID(name string) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte(name)) }

func (s *sheafStore) openGroup(ctx context.Context, dir string, i int) error {
	name := strconv.Itoa(i)
	opts := group.Options{
		FS: vfs.OS{}, Dir: filepath.Join(dir, name), Retention: group.Retention{Versions: 1}, Loader: s.loader,
		Journal:  s.journal,
		Identity: format.Identity{Store: uuid.NewSHA1(uuid.Nil, []byte("peers")), Group: groupID(name), Name: name},
	}
	if s.resident {
		opts.Residency = group.Resident
	}
	if _, err := os.Stat(opts.Dir); os.IsNotExist(err) {
		if err := group.Create(opts, &raftpb.ConfState{Voters: []uint64{1}}); err != nil {
			return err
		}
	}
	log, report, err := group.Load(ctx, opts, nil)
	if err != nil {
		return err
	}
	s.logs[i] = log
	if report.Outcome == group.Damaged {
		return fmt.Errorf("group %s is damaged: %v", name, report.Damages)
	}
	s.replicas[i], err = replica.Start(replica.Options{Log: log, Committer: s.committer, RaftID: 1})
	return err
}

// groupOf returns the group that owns an id. Each group owns an equal range of hashes, as with Hash routing.
func (s *sheafStore) groupOf(id int64) int {
	group, _ := bits.Mul64(routing.Key(id), uint64(len(s.logs)))
	return int(group)
}

func (s *sheafStore) Put(batch []store.Record) error {
	pending := make([]*replica.Pending, 0, len(batch))
	for _, r := range batch {
		pending = append(pending, s.replicas[s.groupOf(r.ID)].Propose(replica.Write{ID: r.ID, Data: r.Data}))
	}
	var first error
	// Wait for all writes even after an error, because the caller may change the data once Put returns.
	for _, p := range pending {
		if _, err := p.Wait(context.Background()); first == nil {
			first = err
		}
	}
	return first
}

func (s *sheafStore) Get(id int64, into []byte) ([]byte, error) {
	r, err := s.logs[s.groupOf(id)].Get(id, group.GetOptions{Buffer: into[len(into):]})
	if errors.Is(err, group.ErrNotFound) {
		return nil, store.ErrNotFound
	} else if err != nil {
		return nil, err
	}
	if len(into) == 0 {
		return r.Data, nil
	}
	return append(into, r.Data...), nil
}

func (s *sheafStore) LoadAll(n int, m *store.Memory) (records int64, err error) {
	if s.resident && m.Each == nil { // Open has already read and checked every byte
		for _, log := range s.logs {
			records += log.Stats().Records
		}
		return records, nil
	}
	var next atomic.Int64
	err = drive.Parallel(n, func(worker int) error {
		for {
			i := next.Add(1) - 1
			if i >= int64(len(s.logs)) {
				return nil
			}
			log := s.logs[i]
			scan, err := log.OpenScan(time.Hour)
			if err != nil {
				return err
			}
			for r, err := range log.Scan(context.Background(), scan, 0, math.MaxUint64, false) {
				if err != nil {
					return err
				}
				m.Keep(worker, r.ID, r.Data)
			}
			log.CloseScan(scan)
		}
	})
	records, _ = m.Records()
	return records, err
}

func (s *sheafStore) Compact() error {
	return drive.Parallel(2, func(worker int) error {
		for i := worker; i < len(s.logs); i += 2 {
			if err := s.logs[i].Seal(); err != nil {
				return err
			}
			if _, err := s.logs[i].Compact(context.Background(), group.CompactOptions{All: true}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *sheafStore) Close() error {
	var errs []error
	for _, r := range s.replicas {
		if r != nil {
			errs = append(errs, r.Stop(context.Background()))
		}
	}
	s.committer.Close()
	for _, log := range s.logs {
		if log != nil {
			errs = append(errs, log.Close(true))
		}
	}
	s.loader.Close()
	if s.journal != nil {
		_, err := s.journal.Close()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
