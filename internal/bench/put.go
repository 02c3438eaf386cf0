package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/journal"
	"sheaf.dev/sheaf/internal/replica"
	"sheaf.dev/sheaf/internal/vfs"
)

// putStore is a volume's worth of replicas with their committer.
type putStore struct {
	dir       string
	committer *replica.Committer
	journal   *journal.Journal
	logs      logs
	replicas  []*replica.Replica
}

func newPutStore(ctx context.Context, dir string, groups int) (s *putStore, err error) {
	s = &putStore{dir: dir, committer: replica.NewCommitter(), journal: journal.New(journal.Options{FS: vfs.OS{}, Dir: dir})}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	store := uuid.New()
	for i := range groups {
		id := format.Identity{Store: store, Group: uuid.New(), Name: strconv.Itoa(i)}
		opts := group.Options{FS: vfs.OS{}, Dir: filepath.Join(dir, id.Group.String()), Identity: id, Retention: group.Retention{Versions: 1}, Journal: s.journal}
		if err := group.Create(opts, &raftpb.ConfState{Voters: []uint64{1}}); err != nil {
			return s, err
		}
		log, _, err := group.Load(ctx, opts, nil)
		if err != nil {
			return s, err
		}
		s.logs = append(s.logs, log)
		r, err := replica.Start(replica.Options{Log: log, Committer: s.committer, RaftID: 1})
		if err != nil {
			return s, err
		}
		s.replicas = append(s.replicas, r)
	}
	return s, nil
}

func (s *putStore) close() error {
	errs := make([]error, 0, len(s.replicas)+2)
	for _, r := range s.replicas {
		errs = append(errs, r.Stop(context.Background()))
	}
	s.committer.Close()
	errs = append(errs, s.logs.close())
	_, err := s.journal.Close()
	return errors.Join(append(errs, err, os.RemoveAll(s.dir))...)
}

// put writes from concurrent writers, each durable before the next of the same writer, spread over the groups, for a
// time, and gives bytes per second.
func (s *putStore) put(ctx context.Context, writers, size int, duration time.Duration) (float64, error) {
	payload := randomBytes(size)
	var written atomic.Int64
	begin := time.Now()
	err := parallel(writers, func(worker int) error {
		r := s.replicas[worker%len(s.replicas)]
		for i := int64(0); time.Since(begin) < duration; i++ {
			pending := r.Propose(replica.Write{ID: int64(worker)<<32 + i, Data: payload})
			if _, err := pending.Wait(ctx); err != nil {
				return err
			}
			written.Add(int64(size))
		}
		return nil
	})
	return float64(written.Load()) / time.Since(begin).Seconds(), err
}

// durablePuts compares durable puts with raw append and fdatasync.
func (b *loadBench) durablePuts(ctx context.Context) (err error) {
	const writers, size = 64, 10 << 10
	dir := filepath.Join(b.dir, "put")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	stores := map[int]*putStore{}
	defer func() {
		for _, s := range stores {
			err = errors.Join(err, s.close())
		}
	}()
	for _, groups := range []int{1, 16, 64} {
		s, err := newPutStore(ctx, filepath.Join(dir, strconv.Itoa(groups)), groups)
		if err != nil {
			return err
		}
		stores[groups] = s
	}
	ours := func(groups int) figure {
		return func() (float64, error) { return stores[groups].put(ctx, writers, size, b.opts.PutTime) }
	}
	raw := func(mode appendMode) func() (float64, error) {
		return func() (float64, error) { return rawAppend(dir, mode, writers, size, b.opts.PutTime) }
	}
	figures, err := takeTurns(b.opts.Rounds, b.opts.Say,
		variant{"own files", raw(ownFiles)},
		variant{"one group", ours(1)},
		variant{"one file", raw(groupOfOne)},
		variant{"16 groups", ours(16)},
		variant{"64 groups", ours(64)},
	)
	if err != nil {
		return err
	}
	cost := func(rates []float64) []float64 { // seconds per GB
		seconds := make([]float64, len(rates))
		for i, r := range rates {
			seconds[i] = 1e9 / r
		}
		return seconds
	}
	b.add(
		against(fmt.Sprintf("durable put of 10 KB, %d writers, 16 groups / raw, own files", writers), "B/s", figures["16 groups"], figures["own files"], 0.8).
			note("raw: each writer appends to a file of its own and calls fdatasync"),
		against(fmt.Sprintf("durable put of 10 KB, %d writers, one group / raw, own files", writers), "B/s", figures["one group"], figures["own files"], 0.8),
		against(fmt.Sprintf("durable put of 10 KB, %d writers, one group / raw, one file", writers), "B/s", figures["one group"], figures["one file"], 0.8).
			note("raw: all append to one file, one fdatasync serves all that wait: the least that a group commit can be"),
		atMost("cost of 64 dirty groups / of one, seconds per GB", "s", cost(figures["64 groups"]), cost(figures["one group"]), 2),
	)
	return nil
}
