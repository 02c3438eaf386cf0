package shard

import (
	"context"
	"maps"
	"slices"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/serve"
)

// newCalls makes the server for the calls to the shard.
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
	sv, err := f.s.findGroup(ctx, f.s.replicas.Routes(), name, epoch)
	if err != nil {
		return nil, err
	}
	return sv, nil
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

func (f forCalls) Admit(bytes int64) error { return f.s.volume.AdmitWrite(bytes, false) }

func (f forCalls) AdmitFile(bytes int64) error { return f.s.volume.Admit(bytes, false) }

func (f forCalls) WithSpace(ctx context.Context, try func() error) error {
	return f.s.compactor.WithSpace(ctx, try)
}

func (f forCalls) WasSlow(one *recordv1.SlowCall) { f.s.slow.calls.add(one) }
