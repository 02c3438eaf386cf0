package shard

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/shard/serve"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// forAdmin implements serve.Admin for a shard. It receives only groups that forCalls returned.
type forAdmin struct{ s *Shard }

func (f forAdmin) Shard() *recordv1.Shard { return f.s.Status().GetShard() }

func (f forAdmin) Groups(only, behind string, most int) ([]*recordv1.Group, bool) {
	return f.s.groupStatuses(only, behind, most)
}

func (f forAdmin) Moves() []*recordv1.Move { return f.s.copies() }

func (f forAdmin) Load() *recordv1.Load { return f.s.loading.Status() }

func (f forAdmin) Loaded() <-chan struct{} { return f.s.loading.Done }

func (f forAdmin) Explain(g serve.Group) ([]*recordv1.CompactionHold, error) {
	return f.s.compactor.Explain(g.(*replicas.Served))
}

func (f forAdmin) Compact(ctx context.Context, g serve.Group, options group.CompactOptions) (group.CompactReport,
	error) {
	return f.s.compactor.CompactLog(ctx, g.(*replicas.Served), options)
}

func (f forAdmin) AcceptLoss(ctx context.Context, g serve.Group) ([]format.Damage, error) {
	return f.s.loading.AcceptLoss(ctx, g.(*replicas.Served).Group)
}

func (f forAdmin) ResolveGroup(ctx context.Context, g serve.Group) (uuid.UUID, error) {
	ctx, cancel := context.WithTimeout(ctx, deleteTime)
	defer cancel()
	state, err := f.s.deletable(ctx, g.(*replicas.Served).Group, uuid.Nil)
	return state.UUID, err
}

func (f forAdmin) DeleteGroup(ctx context.Context, g serve.Group, want uuid.UUID) (uuid.UUID, error) {
	sv := g.(*replicas.Served)
	return sv.Group.UUID, f.s.deleteGroup(ctx, sv, want)
}

func (f forAdmin) DescribeVolume() (*recordv1.DescribeVolumeResponse, error) {
	s := f.s
	out, err := s.id.DescribeVolume(s.volume.Superblock())
	if err != nil {
		return nil, answer.Fail(codes.FailedPrecondition, reason.NotServing, "shard %s: %v", s.cfg.Name, err)
	}
	step := s.volume.Step()
	out.Step, out.StepNonce = step.Number, step.Nonce.String()
	serving := map[string]*replicas.Served{}
	for _, g := range s.replicas.All() {
		serving[g.UUID.String()] = g.Served()
	}
	if out.GetFacts() != nil {
		out.Facts.Epoch = max(out.GetFacts().GetEpoch(), s.replicas.View().Epoch)
	}
	for _, p := range out.GetGroups() {
		if sv := serving[p.GetUuid()]; sv != nil {
			describeFacts(p, sv)
		}
	}
	return out, nil
}
