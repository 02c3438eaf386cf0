package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/group/format"
)

// moveRecordBytes is the size of the records of a group that is moved.
const moveRecordBytes = 10 << 10

// moves compares the transfer of a group's files between two shards, checked and durable, with cp and sync of the same
// files.
func (b *copiesBench) moves(ctx context.Context) (err error) {
	dir, err := b.folder("move")
	if err != nil {
		return err
	}
	n, err := newNodes(ctx, filepath.Join(dir, "nodes"), 1, 1)
	defer func() { err = errors.Join(err, n.close()) }()
	if err != nil {
		return err
	}
	bytes, err := n.fill(b.opts.MoveBytes)
	if err != nil {
		return err
	}
	source := n.nodes[0]
	from := n.options(source, 0).Dir
	to := filepath.Join(dir, "to")
	for _, cold := range []bool{true, false} {
		prepare := func() error {
			if err := os.RemoveAll(to); err != nil {
				return err
			}
			if cold {
				return evict(from)
			}
			return nil
		}
		rate := func(run func() error) figure {
			return func() (float64, error) {
				if err := prepare(); err != nil {
					return 0, err
				}
				return timed(float64(bytes), run)
			}
		}
		rates, err := takeTurns(b.opts.Rounds, b.opts.Say,
			variant{"cp", rate(func() error { return copyAndSync(ctx, from, to) })},
			variant{"move", rate(func() error { return n.install(ctx, to) })},
		)
		if err != nil {
			return err
		}
		state := map[bool]string{true: "cold", false: "in the page cache"}[cold]
		b.add(against(fmt.Sprintf("move of %d MB, source %s: sent, checked, synced / cp + sync", bytes/1e6, state), "B/s", rates["move"], rates["cp"], 0.8).
			note("cp: cp -r, then fdatasync of each file and sync of the folder; the copy goes to the same device"))
	}
	return nil
}

// fill writes records into the first group, and gives the bytes of all its files.
func (n *benchNodes) fill(bytes int64) (int64, error) {
	log := n.nodes[0].logs[n.groups[0]]
	r := n.leaders[0]
	// The replica rests: nobody proposes anything while the log is filled behind its back, as a load would find it.
	if err := r.Stop(context.Background()); err != nil {
		return 0, err
	}
	delete(n.nodes[0].replicas, n.groups[0])
	state, _, err := log.InitialState()
	if err != nil {
		return 0, err
	}
	last, err := log.LastIndex()
	if err != nil {
		return 0, err
	}
	data, now := randomBytes(moveRecordBytes), time.Now().UnixNano()
	for written := int64(0); written < bytes; {
		var entries []*raftpb.Entry
		for range 400 {
			last++
			entries = append(entries, format.RaftEntry(&format.Entry{
				Kind: format.KindPut, Used: true, ID: int64(last), Index: last, Term: state.GetTerm(), CommitTime: now, Timestamp: now, Data: data,
			}))
			written += moveRecordBytes
		}
		if err := appendWith(log, state.GetTerm(), state.GetVote(), entries); err != nil {
			return 0, err
		}
	}
	e, err := log.Export(context.Background())
	if err != nil {
		return 0, err
	}
	return e.Bytes, e.Close()
}

// install moves the first group from the first node to a folder.
func (n *benchNodes) install(ctx context.Context, to string) error {
	opts := n.options(n.nodes[0], 0)
	opts.Dir = to
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	file := format.ReplicaFile{RaftID: format.NewRaftID(), Store: n.store, Group: n.groups[0], Volume: n.store, Joining: true}
	if err := format.WriteReplicaFile(opts.FS, to, file); err != nil {
		return err
	}
	sink := &benchSink{ctx: ctx, opts: opts, replica: file}
	hub, stop := n.guest()
	defer stop()
	if err := hub.Fetcher(n.nodes[0].name).Group(ctx, n.groups[0], sink); err != nil {
		return err
	}
	return sink.install.Finish(ctx)
}

// copyAndSync is the plain way to have a folder twice.
func copyAndSync(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-r", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	names, err := filepath.Glob(filepath.Join(to, "*"))
	if err != nil {
		return err
	}
	for _, name := range append(names, to) {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.Fsync(int(f.Fd()))
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
