package load

import (
	"context"
	"errors"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// serve starts a group's node. plan is the plan with which the group was loaded, or nil.
func (l *Loader) serve(g *replicas.Replica, log *group.Log, plan *group.Plan) error {
	raftID, err := l.Disk.RaftIDOf(g.UUID, log, plan)
	if err != nil {
		return err
	}
	options := l.Node()
	options.Log, options.RaftID, options.Logger = log, raftID, l.Logger.With("group", g.Name)
	options.Admit, options.Transport = l.Disk.AdmitWrite, l.Peers.Transport(g)
	options.OnSnapshot = func(_, _, from uint64) { g.AskFiles(from) }
	options.FetchBlobs = func(ctx context.Context, from uint64, refs []format.BlobRef) error {
		return l.Peers.FetchBlobs(ctx, g, log, from, refs)
	}
	options.OnChange = func() {
		g.AskLook()
		l.Quotas.Wake()
	}
	if copies := l.Replicas.Meta().Copies; copies > 1 {
		options.Forming = func(conf *raftpb.ConfState) bool { return len(conf.GetVoters()) < copies }
	}
	node, err := replica.Start(options)
	if err != nil {
		return err
	}
	sv := g.Serve(log, node, raftID, l.Quotas.Group(g.Name))
	l.Peers.Tell(g, sv)
	g.AskLook()
	return nil
}

// AcceptLoss declares a group's damaged data lost. The group's indexes jump ahead, so its node must restart. Calls that
// arrive during the restart fail with GROUP_LOADING.
func (l *Loader) AcceptLoss(ctx context.Context, g *replicas.Replica) ([]format.Damage, error) {
	sv := g.TakeOut(nil) // waits until other changes of the replica have finished
	if sv == nil {
		return nil, answer.Stopping()
	}
	if l.Stopping() {
		g.PutBack(sv)
		return nil, answer.Stopping()
	}
	defer g.EndChange()
	if err := sv.Replica().Stop(ctx); err != nil {
		l.Logger.Warn("stopping to accept a loss", "group", g.Name, "error", err)
	}
	log, damages, err := sv.Log().AcceptLoss(ctx)
	again := errors.New("its log could not be loaded again")
	if log != nil {
		if again = l.serve(g, log, nil); again != nil {
			again = errors.Join(again, log.Close(false))
		}
	}
	if again != nil {
		err = errors.Join(err, again)
		g.Fail(err)
		l.Health(g, false)
	}
	return damages, err
}
