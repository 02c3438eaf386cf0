package shard

import (
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/shard/serve"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// newCalls creates the server for the calls that clients make to the shard.
func (s *Shard) newCalls() *serve.Server {
	l := &s.cfg.Limits
	return serve.New(serve.Options{
		Name: s.cfg.Name, Residency: s.cfg.Residency, Logger: s.logger, Tracer: s.cfg.Tracer, SlowCallMin: s.cfg.slowCallMin,
		CallsMax: s.cfg.callsMax, BytesInFlightMax: l.BytesInFlightMax, AnswerBytesMax: l.AnswerBytesMax,
		ScansReadingMax: l.ScansReadingMax, SendTimeout: s.cfg.sendTimeout,
		Off: s.cfg.off,
	}, forCalls{s})
}

// forCalls implements serve.Replicas for a shard.
type forCalls struct{ s *Shard }

func (f forCalls) Address() string { return f.s.id.Address }

func (f forCalls) Routing() placement.Routing { return f.s.meta.Routing }

func (f forCalls) Group(ctx context.Context, name string, epoch uint64) (serve.Group, error) {
	r := f.s.replicas.Routes()
	if g := r.ByName[name]; g != nil {
		if sv := g.Served(); sv != nil {
			return sv, nil
		}
	}
	return nil, f.s.notServed(ctx, r, name, epoch)
}

func (f forCalls) GroupOf(ctx context.Context, number int, epoch uint64) (serve.Group, error) {
	r := f.s.replicas.Routes()
	if number < len(r.ByNumber) {
		if g := r.ByNumber[number]; g != nil {
			if sv := g.Served(); sv != nil {
				return sv, nil
			}
		}
	}
	return nil, f.s.notServed(ctx, r, placement.GroupName(number), epoch)
}

func (f forCalls) Groups() (names []string, known bool) {
	r := f.s.replicas.Routes()
	return slices.Sorted(maps.Keys(r.ByName)), r.ByName != nil
}

func (f forCalls) IsJoining(name string) bool {
	g := f.s.replicas.Routes().ByName[name]
	return g != nil && g.State().Phase == member.Joining
}

func (f forCalls) Known(name string) string {
	if g := f.s.replicas.Routes().ByName[name]; g != nil {
		return g.Name
	}
	return ""
}

func (f forCalls) View(ctx context.Context, id uuid.UUID, group string) (uint64, uuid.UUID, error) {
	return f.s.viewOf(ctx, id, group)
}

func (f forCalls) Admit(bytes int64) error { return f.s.volume.AdmitWrite(bytes, false) }

func (f forCalls) AdmitFile(bytes int64) error { return f.s.volume.Admit(bytes, false) }

func (f forCalls) WithSpace(ctx context.Context, try func() error) error {
	return f.s.compactor.WithSpace(ctx, try)
}

func (f forCalls) WasSlow(one *recordv1.SlowCall) { f.s.slow.calls.add(one) }

// forAdmin implements serve.Admin for a shard. It gets only groups that forCalls has returned.
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
		if !g.State().Founder {
			serving[g.UUID.String()] = g.Served()
		}
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
