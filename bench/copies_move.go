package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// moveRecordBytes is the record size in a group that is moved.
const moveRecordBytes = 10 << 10

// movedGroup is a group that is moved repeatedly.
type movedGroup struct {
	bench *copiesBench
	nodes *benchNodes
	from  string // the group's folder
	to    string
	bytes int64
	doors []namedDoor
}

// namedDoor is a door through which a group is moved. Its name is also the key of the cell that measures the move.
type namedDoor struct {
	name string
	door *door
}

const (
	moveInPlaintext = "move"
	moveWithTLS     = "move with TLS"
)

// measureMoves measures how fast a group's files are transferred between two shards, with all checks and syncs. The
// baseline is cp and sync of the same files. With CopiesOptions.TLS, measureMoves also compares a transfer over mutual
// TLS with one in plaintext.
func (b *copiesBench) measureMoves(ctx context.Context) (err error) {
	dir, err := b.folder("move")
	if err != nil {
		return err
	}
	n, err := newNodes(ctx, filepath.Join(dir, "nodes"), 1, 1, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	m := &movedGroup{bench: b, nodes: n, from: n.options(n.nodes[0], 0).Dir, to: filepath.Join(dir, "to")}
	if m.bytes, err = n.fill(b.opts.MoveBytes); err != nil {
		return err
	}
	plaintext, err := n.open(ctx, n.nodes[0], nil)
	if err != nil {
		return err
	}
	defer plaintext.close()
	m.doors = []namedDoor{{moveInPlaintext, plaintext}}
	if b.opts.TLS {
		authorities, err := newAuthorities()
		if err != nil {
			return err
		}
		defer authorities.close()
		secure, err := n.open(ctx, n.nodes[0], authorities)
		if err != nil {
			return err
		}
		defer secure.close()
		m.doors = append(m.doors, namedDoor{moveWithTLS, secure})
	}
	return errors.Join(m.measure(ctx, true), m.measure(ctx, false))
}

// measure moves the group with a cold page cache or a warm one.
func (m *movedGroup) measure(ctx context.Context, cold bool) error {
	prepare := func() error {
		if err := os.RemoveAll(m.to); err != nil {
			return err
		}
		if cold {
			return layouts.Evict(ctx, m.from, true)
		}
		return nil
	}
	measured := func(key string, run func() error) rounds.Cell {
		return rounds.Cell{Key: key, Run: func(_ context.Context, f *rounds.Figures) error {
			if err := prepare(); err != nil {
				return err
			}
			before := processorTime()
			rate, err := perSecond(float64(m.bytes), run)
			f.Set(rounds.Rate, rate)
			f.Set(processor, float64(processorTime()-before)/float64(m.bytes))
			return err
		}}
	}
	cells := make([]rounds.Cell, 0, 1+len(m.doors))
	cells = append(cells, measured("cp", func() error { return copyAndSync(ctx, m.from, m.to) }))
	for _, d := range m.doors {
		cells = append(cells, measured(d.name, func() error { return m.nodes.install(ctx, m.to, d.door) }))
	}
	got, err := m.bench.takeTurns(ctx, cells...)
	if err != nil {
		return err
	}
	source := map[bool]string{true: "cold", false: "in the page cache"}[cold]
	name := fmt.Sprintf("move of %d MB, source %s: ", m.bytes/1e6, source)
	m.bench.add(got.against(name+"sent, checked, synced / cp + sync", "B/s", moveInPlaintext, "cp", 0.8).
		WithNote("cp: cp -r, then fdatasync of each file and sync of the folder; the copy goes to the same device"))
	if m.bench.opts.TLS {
		m.bench.add(
			got.against(name+"with mutual TLS / without", "B/s", moveWithTLS, moveInPlaintext, 0.6),
			got.atMost(name+"processor time of both ends for each GB, with mutual TLS / without", "s", processor,
				moveWithTLS, moveInPlaintext, 0),
		)
	}
	return nil
}

// fill writes records into the first group, and returns the total size of the group's files.
func (n *benchNodes) fill(bytes int64) (int64, error) {
	log := n.nodes[0].logs[n.groups[0]]
	r := n.leaders[0]
	// The replica is stopped first, because the entries are written to the log without Raft.
	if err := r.Stop(context.Background()); err != nil {
		return 0, err
	}
	delete(n.nodes[0].replicas, n.groups[0])
	w, err := layouts.NewWriter(log)
	if err != nil {
		return 0, err
	}
	data, id := randomBytes(moveRecordBytes), int64(0)
	for written := int64(0); written < bytes; {
		var entries []format.Entry
		for range 400 {
			id++
			entries = append(entries, format.Entry{Kind: format.KindPut, ID: id, Data: data})
			written += moveRecordBytes
		}
		if err := w.Commit(entries); err != nil {
			return 0, err
		}
	}
	e, err := log.Export(context.Background())
	if err != nil {
		return 0, err
	}
	return e.Bytes, e.Close()
}

// install fetches the first group from the first node through one of the node's doors, and installs it in a folder.
func (n *benchNodes) install(ctx context.Context, to string, through *door) error {
	opts := n.options(n.nodes[0], 0)
	opts.Dir = to
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	file := format.ReplicaFile{RaftID: format.NewRaftID(), Store: n.store, Group: n.groups[0], Volume: n.store,
		Joining: true}
	if err := format.WriteReplicaFile(opts.FS, to, file); err != nil {
		return err
	}
	sink := &benchSink{ctx: ctx, opts: opts, replica: file}
	if err := through.fetch(ctx, n.groups[0], sink); err != nil {
		return err
	}
	return sink.install.Finish(ctx)
}

// copyAndSync copies a folder with cp and syncs the copy. It is the baseline for a move.
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
