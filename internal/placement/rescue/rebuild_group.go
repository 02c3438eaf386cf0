package rescue

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// located is a replica together with the volume that holds it.
type located struct {
	FoundReplica
	volume FoundVolume
}

// addGroups determines the members of each group.
func (r *Rebuilt) addGroups(store uuid.UUID, volumes []FoundVolume) error {
	replicas := map[string]map[uuid.UUID][]located{} // replicas by the name and then by the UUID of their group
	// Replicas that are still joining do not record the name of their group.
	joining := map[uuid.UUID][]located{}
	for _, v := range volumes {
		for _, f := range v.Replicas {
			r.restored = r.restored || f.isRestored(store)
			switch {
			case f.Joining && !f.Foreign && f.RaftID != 0:
				joining[f.UUID] = append(joining[f.UUID], located{f, v})
				continue
			case f.Name == "" || f.Store != store || f.Foreign || f.Message != "" && f.RaftID == 0:
				r.note("shard %s: group %s %s is left out: %s", v.Shard, f.Name, f.UUID,
					cmp.Or(f.Message, "it is of another store"))
				continue
			}
			if err := placement.ValidateGroupName(f.Name); err != nil {
				return fmt.Errorf("shard %s: %w", v.Shard, err)
			}
			if replicas[f.Name] == nil {
				replicas[f.Name] = map[uuid.UUID][]located{}
			}
			replicas[f.Name][f.UUID] = append(replicas[f.Name][f.UUID], located{f, v})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(replicas)) {
		id, err := r.choose(name, replicas[name])
		if err != nil {
			return err
		}
		if id == uuid.Nil {
			continue
		}
		g, err := r.group(name, replicas[name][id], joining[id])
		if err != nil {
			return fmt.Errorf("group %s: %w", name, err)
		}
		r.Groups = append(r.Groups, g)
	}
	for n := range r.Meta.Routing.Groups {
		if name := placement.GroupName(n); replicas[name] == nil {
			r.Missing = append(r.Missing, name)
		}
	}
	return nil
}

// choose returns the UUID of the group that has the given name, or the zero UUID if every group of that name was
// deleted. Replicas of a deleted group may be left over while a new group has the same name. When the old group was
// deleted, a majority of its members recorded its end. Therefore each replica that is left over either records the
// end or belongs to a minority.
func (r *Rebuilt) choose(name string, found map[uuid.UUID][]located) (chosen uuid.UUID, err error) {
	ids := slices.SortedFunc(maps.Keys(found), func(a, b uuid.UUID) int { return strings.Compare(a.String(), b.String()) })
	whole := slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool {
		return len(ids) > 1 && (newestOf(found[id]).Ended || !hasMajority(found[id]))
	})
	if len(whole) == 0 && !slices.ContainsFunc(ids, func(id uuid.UUID) bool { return !newestOf(found[id]).Ended }) {
		// All groups of this name were deleted, so the result is the zero UUID.
		whole = []uuid.UUID{{}}
	}
	if len(whole) != 1 {
		return chosen, fmt.Errorf("group %s was found as %s on shard %s and as %s on shard %s: start the other "+
			"shards, or move the folder that is wrong away", name, ids[0], found[ids[0]][0].volume.Shard,
			ids[1], found[ids[1]][0].volume.Shard)
	}
	for _, id := range ids {
		if id != whole[0] {
			r.note("group %s: what shard %s holds of an earlier group of this name, %s, is left out", name,
				found[id][0].volume.Shard, id)
		}
	}
	return whole[0], nil
}

// newestOf returns the replica with the newest membership. An older replica may say that the group has ended,
// although the group was resumed later.
func newestOf(found []located) located {
	return slices.MaxFunc(found, func(a, b located) int { return cmp.Compare(a.ConfIndex, b.ConfIndex) })
}

// hasMajority reports whether the replicas that were found include a majority of the newest membership.
func hasMajority(found []located) bool {
	newest := newestOf(found)
	for _, voters := range [][]uint64{newest.Voters, newest.Outgoing} {
		have := 0
		for _, id := range voters {
			if slices.ContainsFunc(found, func(f located) bool { return f.RaftID == id }) {
				have++
			}
		}
		if len(voters) > 0 && have < len(voters)/2+1 {
			return false
		}
	}
	return true
}

func (r *Rebuilt) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// group derives the state of one group. The members are those of the replica that has applied the latest membership
// change. If one of these members was not found, it is included with an empty shard. If too few members were found to
// continue, group also adds the group to Short.
func (r *Rebuilt) group(name string, found, joining []located) (placement.Group, error) {
	slices.SortFunc(found, func(a, b located) int {
		return cmp.Or(cmp.Compare(b.ConfIndex, a.ConfIndex), cmp.Compare(b.Term, a.Term),
			cmp.Compare(b.Committed, a.Committed),
			cmp.Compare(a.volume.Shard, b.volume.Shard))
	})
	newest := found[0]
	g := placement.Group{Name: name, UUID: newest.UUID, Bytes: newest.Bytes, Records: newest.Records,
		ConfIndex: newest.ConfIndex}
	if r.Meta.Routing.Mode == placement.Hash {
		n, err := strconv.Atoi(name)
		if err != nil || n < 0 || n >= r.Meta.Routing.Groups || placement.GroupName(n) != name {
			return g, fmt.Errorf("the store has only groups 0 to %d", r.Meta.Routing.Groups-1)
		}
		g.KeyFirst, g.KeyLast = r.Meta.Routing.KeyRange(n)
	}
	where := map[uint64]located{}
	members := slices.Concat(newest.Voters, newest.Outgoing, newest.Learners)
	for _, f := range slices.Concat(found, joining) {
		if err := r.agrees(newest, f); err != nil {
			return g, err
		}
		if other, twice := where[f.RaftID]; twice {
			return g, fmt.Errorf("shards %s and %s hold the same replica: one is a copy, move its folder away",
				other.volume.Shard, f.volume.Shard)
		}
		where[f.RaftID] = f
		if !slices.Contains(members, f.RaftID) {
			r.note("group %s: the copy on shard %s is no member any more, and left out", name, f.volume.Shard)
		}
	}
	r.addMembers(&g, newest, where)
	r.findLeader(&g, where)
	r.weigh(name, newest, where)
	return g, nil
}

// agrees returns an error if the replica f and the newest replica cannot have the same history.
func (r *Rebuilt) agrees(newest, f located) error {
	switch {
	case f.Joining:
	case f.RaftID == 0:
		return fmt.Errorf("shard %s does not say which voter it is: start it, so that it serves", f.volume.Shard)
	case f.ConfIndex == newest.ConfIndex && !placement.SameSet(f.Voters, newest.Voters):
		return fmt.Errorf(
			"shards %s and %s disagree about who its voters are (%x, %x), as of the same change %d: one of them is not of "+
				"this group's history, move its folder away", newest.volume.Shard, f.volume.Shard, newest.Voters, f.Voters,
			f.ConfIndex)
	}
	return nil
}

// addMembers adds the members of the newest membership.
func (r *Rebuilt) addMembers(g *placement.Group, newest located, where map[uint64]located) {
	for _, list := range []struct {
		ids  []uint64
		role placement.Role
	}{{newest.Voters, placement.Voter}, {newest.Outgoing, placement.Voter}, {newest.Learners, placement.Learner}} {
		for _, id := range list.ids {
			if slices.ContainsFunc(g.Members, func(m placement.Member) bool { return m.RaftID == id }) {
				continue
			}
			m := placement.Member{RaftID: id, Role: list.role}
			if f, ok := where[id]; ok {
				m.Shard, m.VolumeUUID = f.volume.Shard, f.volume.UUID
			}
			g.Members = append(g.Members, m)
		}
	}
	slices.SortStableFunc(g.Members, func(a, b placement.Member) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Shard, b.Shard))
	})
}

// findLeader chooses the leader: among the members that claim to lead, it is the one with the highest term. If no
// member claims to lead, it is the first voter. findLeader sets the group's term only if the chosen member claims to
// lead. If it set a term that only another member has seen, the leader's own writes would be rejected.
func (r *Rebuilt) findLeader(g *placement.Group, where map[uint64]located) {
	for _, m := range g.Members {
		if f, ok := where[m.RaftID]; ok && m.Role == placement.Voter && f.Leader && f.Term >= g.Term {
			g.Leader, g.Term, g.Bytes, g.Records = m.Shard, f.Term, f.Bytes, f.Records
		}
	}
	for _, m := range g.Members {
		if g.Leader == "" && m.Role == placement.Voter {
			g.Leader = m.Shard
		}
	}
}

// weigh adds a group to Short if too few of its voters were found.
func (r *Rebuilt) weigh(name string, newest located, where map[uint64]located) {
	for _, voters := range [][]uint64{newest.Voters, newest.Outgoing} {
		var have []string
		for _, id := range voters {
			if f, ok := where[id]; ok && !f.Joining {
				have = append(have, f.volume.Shard)
			}
		}
		if len(have) < len(voters) {
			r.note("group %s: %d of its %d voters were not found", name, len(voters)-len(have), len(voters))
		}
		if need := len(voters)/2 + 1; len(voters) > 0 && len(have) < need {
			r.Short[name] = fmt.Sprintf(
				"%d of its %d voters were found (%s), needed are %d: start the shards that hold the others",
				len(have), len(voters), cmp.Or(strings.Join(have, ", "), "none"), need)
		}
	}
}
