package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/views"
)

// holdViews makes the logs of all served groups that views need keep their history. It is called whenever views have
// changed in etcd. A hold that has ended is taken from the log by the next compaction.
func (s *Shard) holdViews() {
	for _, g := range s.replicas.Routes().ByUUID {
		sv := g.Served()
		if sv == nil || s.ctx.Err() != nil {
			continue
		}
		if _, on, _ := s.views.HoldOf(g.UUID); !on {
			continue
		}
		if state, known := s.replicas.GroupOf(g); known {
			_, err := s.compactor.History.View(s.ctx, sv, state.Group)
			s.problems.Note("history for views", err)
		}
	}
}

// viewCopies implements ViewCopyService.
type viewCopies struct {
	peerv1.UnimplementedViewCopyServiceServer
	s *Shard
}

const (
	holdTime      = 15 * time.Second // limits one HoldView
	holdGroupsMax = 10_000
)

// HoldView implements ViewCopyService.
func (c viewCopies) HoldView(ctx context.Context, in *peerv1.HoldViewRequest) (*peerv1.HoldViewResponse, error) {
	id, err := placement.ParseDataViewID(in.GetView())
	if err != nil {
		return nil, answer.Invalid("view", "%v", err)
	}
	if n := len(in.GetGroups()); n < 1 || n > holdGroupsMax {
		return nil, answer.Invalid("groups", "has %d groups: give 1 to %d", n, holdGroupsMax)
	}
	ctx, cancel := context.WithTimeout(ctx, holdTime)
	defer cancel()
	view, err := c.s.views.Await(ctx, id)
	if err != nil {
		return nil, answer.Of(fmt.Errorf("view %s is not known to shard %s yet: %w", id, c.s.cfg.Name, err), answer.Where{})
	}
	out := &peerv1.HoldViewResponse{}
	for _, name := range in.GetGroups() {
		held := &peerv1.HeldGroup{}
		of, found := view.Group(name)
		err := errors.New("it is not a group of the view")
		if found {
			held.Floor, held.Index, err = c.hold(ctx, of.UUID, in.GetChoose())
		}
		if err != nil {
			held.Error = fmt.Sprintf("shard %s, group %s: %v", c.s.cfg.Name, name, err)
		}
		out.Groups = append(out.Groups, held)
	}
	return out, nil
}

// hold makes one group obey the views, and chooses an index if choose is set.
func (c viewCopies) hold(ctx context.Context, id uuid.UUID, choose bool) (floor, index uint64, err error) {
	g := c.s.replicas.Find(id)
	if g == nil || g.Served() == nil {
		return 0, 0, errors.New("the copy is not served here")
	}
	sv := g.Served()
	state, known := c.s.replicas.GroupOf(g)
	if !known {
		return 0, 0, errors.New("nothing is known about the group yet")
	}
	if floor, err = c.s.compactor.History.View(ctx, sv, state.Group); err != nil || !choose {
		return floor, 0, err
	}
	if err := sv.Barrier(ctx); err != nil {
		return floor, 0, err
	}
	return floor, sv.Log().AppliedIndex(), nil
}

// viewOf implements the method View of serve.Replicas.
func (s *Shard) viewOf(ctx context.Context, id uuid.UUID, name string) (index uint64, of uuid.UUID, err error) {
	v, err := s.views.Find(ctx, id)
	switch {
	case errors.Is(err, views.ErrGone):
		return 0, of, answer.ViewExpired(id, "%v", err)
	case errors.Is(err, views.ErrOpening):
		return 0, of, answer.ViewNotYet(id, "%v", err)
	case err != nil:
		return 0, of, answer.ViewNotYet(id, "etcd has not said whether it exists: %v", err)
	}
	g, found := v.Group(name)
	switch {
	case !found:
		return 0, of, answer.Invalid("view", "view %s does not contain group %q", id, name)
	case g.Lost != "":
		return 0, of, answer.ViewExpired(id, "group %q can no longer be read in it: %s", name, g.Lost)
	}
	return g.Index, g.UUID, nil
}
