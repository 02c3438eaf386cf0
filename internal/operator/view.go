package operator

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/placement"
)

// Look returns where groups are, and writes nothing.
func (p *placed) Look(ctx context.Context, spec fleet.PlacementSpec) (fleet.PlacementView, error) {
	meta, err := metaOf(spec)
	if err != nil {
		return fleet.PlacementView{}, err
	}
	return p.look(ctx, meta.StoreUUID)
}

func (p *placed) look(ctx context.Context, id uuid.UUID) (fleet.PlacementView, error) {
	view, err := p.store.ViewOf(ctx, id)
	if err != nil {
		return fleet.PlacementView{}, translate(err)
	}
	_, unplaced := placement.Plan(view, view.Meta.Policy())
	return viewOf(view, unplaced), nil
}

// viewOf converts a view to the controllers' form.
func viewOf(view placement.View, unplaced map[string]string) fleet.PlacementView {
	out := fleet.PlacementView{
		Copies: int32(view.Meta.Copies), Unplaced: unplaced, //nolint:gosec // 1, 3 or 5
		Shards: make(map[string]fleet.ShardPlace, len(view.Shards)),
		Groups: make(map[string]fleet.GroupPlace, len(view.Groups)),
	}
	for name, s := range view.Shards {
		out.Shards[name] = fleet.ShardPlace{Domain: s.Domain, Node: s.Node}
	}
	for name, g := range view.Groups {
		place := fleet.GroupPlace{Target: view.Targets[name].Shards}
		for _, m := range g.Members {
			shard, alive := view.Shards[m.Shard]
			c := fleet.CopyPlace{Shard: m.Shard, Volume: m.VolumeUUID.String(), Here: alive && shard.VolumeUUID == m.VolumeUUID}
			if m.Role == placement.Learner {
				place.Learners = append(place.Learners, c)
			} else {
				place.Voters = append(place.Voters, c)
			}
		}
		place.Shares = sharedBy(view, place)
		out.Groups[name] = place
	}
	return out
}

// sharedBy returns the failure domains that two copies share while a group moves.
func sharedBy(view placement.View, g fleet.GroupPlace) []string {
	from := make([]string, 0, len(g.Voters))
	for _, c := range g.Voters {
		from = append(from, c.Shard)
	}
	if len(from) == 0 || view.Meta.Copies == 1 || len(g.Target) == 0 {
		return nil
	}
	return placement.SharedDomains(from, g.Target, view.Domain)
}

// describe fills out with the view from which the plan was made, and with the counts of the plan.
func describe(out *fleet.PlacementState, planned placement.Planned) {
	view := planned.View
	out.Changed = out.Changed || planned.GroupsCreated+planned.TargetsWritten > 0
	out.Targets = int32(planned.TargetsWritten) //nolint:gosec // at most 65536
	out.View = viewOf(view, planned.Unplaced)
	out.Groups, out.Missing = int32(len(view.Groups)), int32(planned.GroupsCreated) //nolint:gosec // at most 65536
	out.Alive, out.Silent, out.Unplaced = map[string]bool{}, map[string]string{}, planned.Unplaced
	for name := range view.Shards {
		out.Alive[name] = true
	}
	for name, g := range out.View.Groups {
		if len(g.Voters) == 0 {
			out.Homeless++
			continue
		}
		away := slices.IndexFunc(g.Voters, func(c fleet.CopyPlace) bool { return !out.Alive[c.Shard] })
		alive := 0
		for _, c := range g.Voters {
			if out.Alive[c.Shard] {
				alive++
			}
		}
		if away >= 0 && alive <= len(g.Voters)/2 {
			out.Silent[name] = g.Voters[away].Shard
		}
	}
}
