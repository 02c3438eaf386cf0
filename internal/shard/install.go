package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/disk"
	"sheaf.dev/sheaf/internal/shard/follow"
	"sheaf.dev/sheaf/internal/shard/load"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// A replica that joins its group, or that is too far behind, is installed: it fetches the files of another member.
// The fetched files are collected next to the existing ones and checked. They then replace the existing files in one
// step.

const (
	installsAtOnce = 16 // large installs are also limited by the shard that sends the files
	installBusy    = 250 * time.Millisecond
	// foundersAtOnce is the number of founders that are installed at the same time from the source of a restore. While
	// the source reads one group from the bucket, it sends another one, and the shard syncs a third one.
	foundersAtOnce = 3
)

// installPauses are the pauses between two attempts to install a replica.
var installPauses = backoff.Doubling{First: 50 * time.Millisecond, Most: 5 * time.Second}

// installer installs replicas from the files of other members. It is safe for concurrent use.
type installer struct {
	name      string // name of the shard
	ctx       context.Context
	watcher   *follow.Watcher
	loading   *load.Loader
	health    func(g *replicas.Replica, serving bool)
	volume    *disk.Disk
	replicas  *replicas.Set
	withSpace func(ctx context.Context, try func() error) error
	peers     *peers
	problems  *problems.List
	tails     *prometheus.CounterVec
	logger    *slog.Logger

	slots    chan struct{} // bounds the installs in progress
	founders chan struct{} // bounds the installs from the source of a restore
	alone    chan struct{} // held by the only founder that is installed until the source is known to work
	works    atomic.Bool   // whether a founder was installed since the source last had a problem
	tried    sync.Map      // UUIDs of the groups that had a turn
	founding atomic.Int64  // number of founders that are being installed, or wait for their turn
	tookOver atomic.Uint64 // number of replicas that were installed
}

func newInstaller(s *Shard) *installer {
	return &installer{
		name: s.cfg.Name, ctx: s.ctx, watcher: s.watcher, loading: s.loading, health: s.setHealth, volume: s.volume,
		replicas: s.replicas, withSpace: s.compactor.WithSpace, peers: s.peers, problems: s.problems,
		tails: s.metrics.tails, logger: s.logger, slots: make(chan struct{}, installsAtOnce),
		founders: make(chan struct{}, foundersAtOnce), alone: make(chan struct{}, 1),
	}
}

// run installs each replica that has asked for files, until ctx is done.
func (i *installer) run(ctx context.Context) {
	var installs sync.WaitGroup
	defer installs.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.replicas.Files.Woken:
		}
		for g, from := range i.replicas.Files.Take() {
			installs.Go(func() { i.installAgain(ctx, g, from) })
		}
	}
}

// join installs a replica that is still empty, and serves it.
func (i *installer) join(g *replicas.Replica) {
	defer i.replicas.Wake() // a founder must be reported to etcd
	defer g.EndFetch()
	if g.State().Founder {
		if !i.found(g.Fetch(), g) {
			return
		}
	} else if !i.takeOver(g.Fetch(), g, "joining group "+g.Name, nil) {
		return
	}
	g.Happens(member.Installed)
	i.logger.Info("a replica was installed", "group", g.Name)
	i.loading.Load(i.ctx, g)
}

// takeOver installs a replica whose node does not run, and retries until it succeeds. The files come from another
// member. It returns false if etcd no longer names the replica, if the context is done, or if giveUp returns true for
// an error. giveUp may be nil.
func (i *installer) takeOver(ctx context.Context, g *replicas.Replica, what string,
	giveUp func(state placement.Group, from string, err error) bool) bool {
	defer i.problems.Note(what, nil)
	tries := backoff.Tries{Doubling: installPauses}
	for {
		state, wanted := i.replicas.GroupOf(g)
		if !wanted || !slices.ContainsFunc(i.replicas.Here(state.Group), func(m placement.Member) bool {
			return m.RaftID == g.State().RaftID
		}) {
			return false // the watcher closes the replica
		}
		from, err := i.fetchFrom(g, state.Group)
		if err == nil {
			err = i.withSpace(ctx, func() error { return i.install(ctx, g, i.peers.hub.Fetcher(from), nil) })
		}
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil, giveUp != nil && giveUp(state.Group, from, err):
			return false
		case errors.Is(err, peer.ErrBusy):
			tries.AtMost(installBusy) // the sender already serves as many installs as it may
		case !errors.Is(err, peer.ErrNotHere):
			i.problems.Note(what, err)
		}
		if !tries.Wait(ctx) {
			return false
		}
	}
}

// fetchFrom returns the shard from which a replica should fetch its files. This is the leader's shard if possible,
// and another voter's shard otherwise.
func (i *installer) fetchFrom(g *replicas.Replica, state placement.Group) (string, error) {
	if _, ok := i.replicas.Address(state.Leader); ok && state.Leader != i.name {
		return state.Leader, nil
	}
	for _, m := range state.Members {
		if _, ok := i.replicas.Address(m.Shard); ok && m.Role == placement.Voter && m.Shard != i.name {
			return m.Shard, nil
		}
	}
	return "", fmt.Errorf("group %s: no member is known that it could be fetched from", g.Name)
}

// install fetches a group's files, and swaps them for the existing ones. If ready is not nil, install calls it before
// the swap.
func (i *installer) install(ctx context.Context, g *replicas.Replica, from *peer.Fetcher, ready func() error) error {
	select {
	case i.slots <- struct{}{}:
		defer func() { <-i.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	state := g.State()
	sink := &installSink{
		ctx: ctx, opts: i.volume.LogOptions(g.UUID, g.Name).ForInstall(),
		replica: i.volume.ReplicaFile(g.UUID, state.RaftID), missing: map[string]transfer.File{}, from: from.From(),
		copying: g.Copying(),
	}
	if state.Founder {
		sink.replica.Founder = true
		sink.described = func() { i.problems.Note(restoreSource, nil) }
	}
	sink.opts.Damaged = state.Phase == member.DamagedTail
	defer sink.copying.Waits()
	if err := from.Group(ctx, g.UUID, sink); err != nil {
		return err
	}
	if ready != nil {
		if err := ready(); err != nil {
			return err
		}
	}
	defer i.tookOver.Add(1)
	return sink.install.Finish(ctx)
}

// installSink is a peer.Sink.
type installSink struct {
	ctx     context.Context
	opts    transfer.Options
	replica format.ReplicaFile
	install *transfer.Install
	missing map[string]transfer.File // incomplete files, as last reported

	described       func() // called when the sender has described the files; may be nil
	from            string // the shard or source that sends the files
	copying         *replicas.Copying
	segments, total int64 // in bytes
}

func (i *installSink) Describe(d peer.Description) (err error) {
	if i.install, err = transfer.NewInstall(i.ctx, i.opts, i.replica, d.Manifest); err != nil {
		return err
	}
	i.total = d.Bytes
	if m, _, err := format.DecodeManifest(d.Manifest); err == nil { // always nil, because NewInstall has decoded it
		for _, segment := range m.Segments {
			i.segments += segment.Bytes
		}
	}
	i.copying.Begin(i.from, i.total)
	if i.described != nil {
		i.described()
	}
	return nil
}

func (i *installSink) Wanted() ([]peer.FileRange, error) {
	missing := i.install.Missing()
	i.copying.Have(haveBytes(missing, i.segments, i.total))
	wanted := make([]peer.FileRange, 0, len(missing))
	clear(i.missing)
	for _, f := range missing {
		i.missing[f.Name] = f
		wanted = append(wanted, peer.FileRange{Name: f.Name, Offset: f.Have, Bytes: f.Bytes})
	}
	return wanted, nil
}

func (i *installSink) Create(r peer.FileRange) (peer.SinkFile, error) {
	file, err := i.install.File(i.missing[r.Name])
	if err != nil {
		return nil, err
	}
	return countedFile{file, i.copying}, nil
}

// countedFile counts the bytes written to a file that is being received.
type countedFile struct {
	peer.SinkFile
	copying *replicas.Copying
}

func (f countedFile) Write(b []byte) (int, error) {
	n, err := f.SinkFile.Write(b)
	f.copying.Add(int64(n))
	return n, err
}

// haveBytes returns how many of the bytes to fetch are already present, given the files that are not complete. Blobs
// are counted only when all segments are present, because until then it is not known which blobs the replica needs.
func haveBytes(missing []transfer.File, segments, total int64) (have int64) {
	have = total
	if slices.ContainsFunc(missing, func(f transfer.File) bool { return f.Kind == transfer.SegmentFile }) {
		have = segments
	}
	for _, f := range missing {
		have -= f.Bytes - f.Have
	}
	return max(0, have)
}

// installAgain installs a replica that needs entries which its leader has compacted away. The leader's Raft id is
// passed as from.
func (i *installer) installAgain(ctx context.Context, g *replicas.Replica, from uint64) {
	sv, fetch := g.BeginFetch(ctx)
	if sv == nil {
		return
	}
	defer g.EndFetch()
	shard, ok := g.Route(from)
	if !ok {
		return
	}
	i.logger.Warn("the replica is too far behind: it is installed again", "group", g.Name, "from", shard)
	stopped := false
	err := i.install(fetch, g, i.peers.hub.Fetcher(shard), func() (err error) {
		stopped, err = i.pause(ctx, g, sv)
		return err
	})
	if stopped {
		i.loading.Load(ctx, g)
		g.EndChange()
	}
	if fetch.Err() != nil { // the shard is stopping, or the replica has left its group
		return
	}
	if known, problem := problemOfInstall(err); known {
		i.problems.Note(problems.Installing+g.Name, problem)
	}
	if errors.Is(err, transfer.ErrBehind) {
		i.logger.Info("the install was not needed any more: the replica has received entries meanwhile", "group", g.Name,
			"from", shard, "why", err)
	}
	if err != nil {
		backoff.Sleep(ctx, time.Second) // without a pause, the leader would immediately resend its offer
	}
	i.peers.Transport(g).Send([]*raftpb.Message{{ // after this message, the leader sends entries again
		Type: raftpb.MsgSnapStatus.Enum(), From: new(sv.RaftID), To: &from, Reject: new(err != nil),
	}})
}

// problemOfInstall returns the problem of a running replica after an attempt to install it ended with err, or nil if
// it has no problem. known is false if the attempt says nothing about the replica, because the other member cannot
// send files at the moment.
func problemOfInstall(err error) (known bool, problem error) {
	switch {
	case errors.Is(err, peer.ErrBusy), errors.Is(err, peer.ErrNotHere):
		return false, nil
	case errors.Is(err, transfer.ErrBehind):
		return true, nil // the replica has received the missing entries during the attempt
	}
	return true, err
}

// pause stops a served replica's node, closes its log, and locks the replica so that nothing else can change it. If
// closed is true, the caller must call EndChange to release the lock.
func (i *installer) pause(ctx context.Context, g *replicas.Replica, sv *replicas.Served) (closed bool, err error) {
	if g.TakeOut(sv) == nil {
		return false, errors.New("the replica was closed meanwhile")
	}
	g.Happens(member.Paused)
	i.health(g, false)
	over, cancel := context.WithCancel(ctx)
	cancel() // no wait is needed, because a replica that does not lead has no client writes in progress
	if err := sv.Replica().Stop(over); err != nil {
		i.logger.Debug("stopping to install", "group", g.Name, "error", err)
	}
	return true, sv.Log().Close(false)
}
