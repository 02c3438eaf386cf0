package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// line is the connection of one process to etcd. It stops working when the process dies.
type line struct {
	*memRegistry
	x     *exploration
	dead  atomic.Bool
	stays bool // whether the registration outlives the process, as if its lease had not been revoked
}

func (l *line) Meta(ctx context.Context) (placement.Meta, error) {
	if l.dead.Load() {
		return placement.Meta{}, errDown
	}
	return l.memRegistry.Meta(ctx)
}

func (l *line) MayRegister(ctx context.Context, s placement.Shard) (placement.Step, error) {
	if l.dead.Load() {
		return placement.Step{}, errDown
	}
	return l.memRegistry.MayRegister(ctx, s)
}

func (l *line) NextStep(ctx context.Context, s placement.Shard) error {
	if l.dead.Load() {
		return errDown
	}
	return l.memRegistry.NextStep(ctx, s)
}

func (l *line) RegisterShard(ctx context.Context, s placement.Shard, refused ...func(error)) (func(), error) {
	if l.dead.Load() {
		return nil, errDown
	}
	stop, err := l.memRegistry.RegisterShard(ctx, s, refused...)
	return func() {
		if !l.dead.Load() || !l.stays {
			stop()
		}
	}, err
}

func (l *line) PutGroup(ctx context.Context, g placement.Group) (placement.Group, error) {
	if l.dead.Load() {
		return g, errDown
	}
	return l.memRegistry.PutGroup(ctx, g)
}

func (l *line) PutGroupAsLeader(ctx context.Context, g placement.Group) (placement.Group, error) {
	if l.dead.Load() {
		return g, errDown
	}
	return l.memRegistry.PutGroupAsLeader(ctx, g)
}

// DeleteGroup loses every sixth request, so that the group has ended but is not deleted. It also loses every sixth
// response. Which ones are lost depends on the seed. They are counted and not drawn at random, so that some are lost in
// any exploration with a few deletions.
func (l *line) DeleteGroup(ctx context.Context, g placement.Group) error {
	if l.dead.Load() {
		return errDown
	}
	luck := l.x.nextDeletion() % 6
	if luck == 0 {
		l.x.fire("deletion lost on its way to etcd")
		return errDown
	}
	err := l.memRegistry.DeleteGroup(ctx, g)
	if luck == 1 && err == nil {
		l.x.fire("answer of etcd to a deletion lost")
		return errDown
	}
	return err
}

// machine is an in-memory disk, together with the shard that runs on it, if there is one. The shard is started and
// stopped only by the code that causes the faults (the nemesis).
type machine struct {
	x    *exploration
	name string

	disk   *vfstest.Mem
	faulty *vfstest.Faulty // the disk from the shard's point of view, with faults
	line   *line

	mu      sync.Mutex // guards the fields that clients read
	shard   *Shard     // nil if no shard runs
	conn    *grpc.ClientConn
	records recordv1.RecordServiceClient
}

// stage is a part of the life of a replica. It is recognized by the disk operations that happen in it.
type stage struct {
	name  string
	match func(op vfstest.Op) bool
	most  int // the machine dies at the latest after this many operations of the stage
}

const exploreDir = "/v"

// inGroup returns the path of a file relative to the folder of its group. For the folder itself, it returns ".".
func inGroup(name string) (file string, ok bool) {
	_, rest, ok := strings.Cut(name, exploreDir+"/groups/")
	if !ok {
		return "", false
	}
	_, file, _ = strings.Cut(rest, "/")
	return path.Clean(file), true
}

// A machine may die at any of these stages.
var (
	beginning = stage{"begins a replica", func(op vfstest.Op) bool {
		file, ok := inGroup(op.Name)
		return ok && (op.Kind == vfstest.OpMkdir && file == "." || strings.HasPrefix(file, format.ReplicaName))
	}, 5}
	joining = stage{"installs a replica", func(op vfstest.Op) bool {
		file, _ := inGroup(op.Name)
		return strings.HasPrefix(file, format.IncomingName)
	}, 30}
	leaving = stage{"removes a replica", func(op vfstest.Op) bool {
		trash := exploreDir + "/trash"
		return strings.HasPrefix(op.Name, trash) || strings.HasPrefix(op.NewName, trash) ||
			op.Kind == vfstest.OpSyncDir && op.Name == exploreDir+"/groups"
	}, 8}
	anything = stage{"does anything", func(vfstest.Op) bool { return true }, 200}
)

// arm makes the machine die right after the n-th operation of a stage, together with its connection to etcd. At that
// moment, the channel that arm has returned is closed.
func (m *machine) arm(s stage, n int) (hit chan struct{}) {
	hit = make(chan struct{})
	disk, line := m.disk, m.line
	var seen atomic.Int64
	disk.AfterOp(func(op vfstest.Op) {
		if s.match(op) && seen.Add(1) == int64(n) {
			line.dead.Store(true)
			disk.CrashAfter(op.Number)
			m.x.event("%s is hit behind %v", m.name, op)
			close(hit)
		}
	})
	return hit
}

func (m *machine) disarm() { m.disk.AfterOp(nil) }

// die kills the process immediately. The argument how determines what is left on the disk: everything after a kill,
// and less after a power cut.
func (m *machine) die(how vfstest.Survival) {
	m.line.dead.Store(true)
	m.disk.CrashAfter(0)
	m.end(func(s *Shard) { s.Kill() })
	m.renew(how)
}

// renew replaces the disk with one that contains only what has survived.
func (m *machine) renew(how vfstest.Survival) {
	m.disarm()
	m.disk = m.disk.CrashClone(how)
	m.faulty = vfstest.NewFaulty(m.disk)
}

// end ends the shard by calling how. If that takes too long, end reports a violation. It then also repairs the disk,
// so that the test can finish.
func (m *machine) end(how func(s *Shard)) {
	m.mu.Lock()
	s, conn := m.shard, m.conn
	m.shard, m.conn, m.records = nil, nil, nil
	m.mu.Unlock()
	if s == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		how(s)
	}()
	select {
	case <-done:
	case <-time.After(m.x.patience):
		m.x.violate(oracleStop, "shard %s does not come to its end within %v", m.name, m.x.patience)
		m.faulty.Clear()
		<-done
	}
	_ = conn.Close()
}

// stop stops the shard in the regular way.
func (m *machine) stop() {
	m.end(func(s *Shard) {
		ctx, cancel := context.WithTimeout(context.Background(), m.x.patience/2)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			m.x.event("stop of %s: %v", m.name, err)
		}
	})
}

// start starts the shard. It tries again if etcd is down, or if the machine dies during the start. In the latter
// case, the argument how determines what is left on the disk.
func (m *machine) start(how vfstest.Survival) {
	for began := time.Now(); ; {
		err := m.startOnce()
		if err == nil {
			return
		}
		switch {
		case m.disk.Crashed() || m.line.dead.Load():
			m.renew(how)
			m.x.fire("killed again as it starts")
		case errors.Is(err, errDown) && time.Since(began) < m.x.patience:
			time.Sleep(5 * time.Millisecond)
		default:
			m.x.violate(oracleStart, "shard %s does not start: %v", m.name, err)
			return
		}
	}
}

func (m *machine) startOnce() error {
	m.line = &line{memRegistry: m.x.registry, x: m.x, stays: m.x.dice(2) == 0}
	cfg := m.x.shardConfig
	cfg.Name, cfg.Dir, cfg.Listen, cfg.FS, cfg.Placement = m.name, exploreDir, "127.0.0.1:0", m.faulty, m.line
	cfg.Listener, cfg.Dial = m.x.network.Listen, m.x.network.Dial
	cfg.Logger = slog.New(slog.NewTextHandler(eventWriter{m.x},
		&slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: noTime}))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	conn, err := connect(&cfg, s.Addr(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(16<<20)))
	if err != nil {
		s.Kill()
		return err
	}
	m.mu.Lock()
	m.shard, m.conn, m.records = s, conn, recordv1.NewRecordServiceClient(conn)
	m.mu.Unlock()
	m.x.event("%s runs", m.name)
	return nil
}

// running returns the shard and a client for it. If no shard is running, it returns nil.
func (m *machine) running() (*Shard, recordv1.RecordServiceClient) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shard, m.records
}

// eventWriter adds the log of a shard to the events of the exploration.
type eventWriter struct{ x *exploration }

func (w eventWriter) Write(b []byte) (int, error) {
	w.x.event("%s", strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func noTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// event records an event. If there is a violation, the test logs these events.
func (x *exploration) event(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.events = append(x.events, fmt.Sprintf("%8.3f ", time.Since(x.began).Seconds())+fmt.Sprintf(format, args...))
}
