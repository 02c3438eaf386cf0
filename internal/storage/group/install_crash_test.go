package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestInstallSurvivesACrashAtEveryOperation crashes after each operation of an install. The folder belongs to a joining
// replica, or holds an older log of the same replica. Afterwards the folder must be in its old or in its new state, and
// it must be possible to complete the install.
func TestInstallSurvivesACrashAtEveryOperation(t *testing.T) {
	seeds := soaktest.Pick(uint64(2), 40, 1)
	for seed := range seeds {
		for _, over := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d over %t", seed, over), func(t *testing.T) {
				t.Parallel()
				crashInstall(t, seed, over)
			})
		}
	}
}

func crashInstall(t *testing.T, seed uint64, over bool) {
	w := randomState(t, seed, Index, 50)
	mem := vfstest.NewMem()
	opts := joinerOptions(w.opts, mem)
	joining := joiner
	joining.Joining = true
	ok(t, format.WriteReplicaFile(mem, opts.Dir, joining))
	c := &installCrash{t: t, opts: opts}
	if over {
		ok(t, install(w.log, opts))
		old := mustLoad(t, opts)
		term, vote, commit := w.term+1, uint64(2), old.AppliedIndex()
		ok(t, old.Append(&raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}, nil))
		ok(t, old.Sync())
		ok(t, old.Close(false))
		c.term, c.before = term, commit
		for range 30 {
			ok(t, w.step())
		}
		ok(t, w.sync())
		ok(t, w.apply())
	}
	if w.log.AppliedIndex() <= c.before {
		w.put(format.Entry{ID: 1, Data: []byte("newer")})
	}
	c.from = w.log
	var mu sync.Mutex
	mem.AfterOp(func(op vfstest.Op) {
		mu.Lock()
		defer mu.Unlock()
		if c.failed != nil {
			return
		}
		kinds := vfstest.SurvivalKinds
		if op.Kind == vfstest.OpRename {
			kinds = append(slices.Clone(kinds), slices.Repeat([]vfstest.SurvivalKind{vfstest.SurviveRandom}, 6)...)
		}
		for i, kind := range kinds {
			s := vfstest.Survival{Kind: kind, Seed: uint64(op.Number)<<8 + uint64(i)}
			if err := c.check(mem.CrashClone(s)); err != nil {
				c.failed = fmt.Errorf("crash after operation %d (%s), survival %s: %w", op.Number, op, s, err)
				return
			}
		}
	})
	err := install(w.log, opts)
	mem.AfterOp(nil)
	ok(t, errors.Join(err, c.failed))
	t.Logf("%d crashes left the old state, %d the new one", c.old, c.new)
	if c.old == 0 || c.new == 0 {
		t.Error("the crashes were on one side of the commit point alone")
	}
}

// installCrash counts the states that the crashes leave, and checks them.
type installCrash struct {
	t        *testing.T
	opts     Options
	from     *Log
	before   uint64 // applied index of the old log; 0 if the replica was joining
	term     uint64 // term in which the old log has a vote for replica 2
	old, new int
	failed   error
}

func (c *installCrash) check(disk *vfstest.Mem) error {
	opts := c.opts
	opts.FS = disk
	f, found, err := format.ReadReplicaFile(disk, opts.Dir)
	switch {
	case err != nil || !found || f.RaftID != joiner.RaftID:
		return fmt.Errorf("replica file %+v, %t, %w", f, found, err)
	case f.Joining && c.before > 0:
		return errors.New("the member is joining again")
	case f.Joining:
		c.old++
		if report, err := fsck.VerifyDir(context.Background(), disk, opts.Dir, nil); err != nil || !report.Joining {
			return fmt.Errorf("%+v, %w", report, err)
		}
	default:
		if err := c.load(opts); err != nil {
			return err
		}
	}
	// Completing the install after every crash would double the test's duration, so only some crashes are checked this
	// way.
	if (c.old+c.new)%5 != 0 {
		return nil
	}
	if err := install(c.from, opts); err != nil {
		return fmt.Errorf("install again: %w", err)
	}
	return c.loadNew(opts)
}

// load loads a replica, and checks that its log is either the old one or the new one.
func (c *installCrash) load(opts Options) error {
	l, report, err := Load(context.Background(), opts, nil)
	if err != nil {
		return err
	}
	if report.Outcome != Loaded {
		return errors.Join(fmt.Errorf("%+v", report), l.Close(false))
	}
	at := l.AppliedIndex()
	err = c.voted(l)
	switch {
	case at == c.from.AppliedIndex():
		c.new++
		err = errors.Join(err, sameLogs(c.from, l))
	case at == c.before:
		c.old++
	default:
		err = errors.Join(err, fmt.Errorf("applied index %d is neither %d nor %d", at, c.before, c.from.AppliedIndex()))
	}
	return errors.Join(err, l.Close(false))
}

func (c *installCrash) voted(l *Log) error {
	hard, _, err := l.InitialState()
	if c.term > 0 && (hard.GetTerm() < c.term || hard.GetTerm() == c.term && hard.GetVote() != 2) {
		return fmt.Errorf("term %d vote %d, term %d vote 2 was given", hard.GetTerm(), hard.GetVote(), c.term)
	}
	return err
}

func (c *installCrash) loadNew(opts Options) error {
	l, report, err := Load(context.Background(), opts, nil)
	if err != nil {
		return err
	}
	err = errors.Join(sameLogs(c.from, l), c.voted(l), l.Close(false))
	if report.Outcome != Loaded {
		err = errors.Join(err, fmt.Errorf("%+v", report))
	}
	return err
}
