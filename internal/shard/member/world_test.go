package member

import (
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// These are the volume of this shard and the volumes of the other copies.
var (
	here, there = uuid.UUID{1}, uuid.UUID{2}
	others      = []placement.Member{
		{Shard: "b", VolumeUUID: there, RaftID: 2}, {Shard: "c", VolumeUUID: there, RaftID: 3},
	}
)

// on returns a member on shard a.
func on(volume uuid.UUID, raftID uint64, role placement.Role) placement.Member {
	return placement.Member{Shard: "a", VolumeUUID: volume, RaftID: raftID, Role: role}
}

func with(m ...placement.Member) []placement.Member { return append(m, others...) }

// memberships are the memberships in the tests. The replica on shard a, if there is one, has the Raft id 1.
var memberships = [][]placement.Member{
	nil, others, others[:1],
	{on(here, 1, placement.Voter)}, {on(there, 1, placement.Voter)},
	{on(here, 9, placement.Voter)}, {on(here, 9, placement.Learner)},
	with(on(here, 1, placement.Voter)), with(on(here, 1, placement.Learner)),
	with(on(here, 9, placement.Voter)), with(on(here, 9, placement.Learner)),
	with(on(there, 1, placement.Voter)), with(on(there, 9, placement.Learner)), with(on(uuid.Nil, 1, placement.Voter)),
	with(placement.Member{RaftID: 1}), with(placement.Member{RaftID: 1}, on(here, 9, placement.Learner)),
	with(on(here, 1, placement.Voter), on(here, 9, placement.Learner)),
	with(on(here, 9, placement.Voter), on(there, 1, placement.Voter)),
}

var standings = []Standing{{}, {Reason: Unconfirmed}, {Reason: Elsewhere}}

// everything calls do with each combination of a view and a replica in a small model, and also with each view and no
// replica.
func everything(do func(v View, r *Replica)) {
	for _, members := range memberships {
		for bits := range 1 << 4 {
			is := func(n int) bool { return bits>>n&1 == 1 }
			for _, index := range []uint64{0, 6, 7} {
				v := View{
					Shard: "a", Volume: here, Known: true, EpochBase: 50,
					Group:   placement.Group{Name: "0", Members: members, ConfIndex: index, Revision: 50},
					SetBack: is(0), LoadBegun: is(1), Retired: map[uint64]bool{9: is(2)}, Target: []string{"b", "a"},
				}
				if is(2) {
					v.Target = []string{"a", "b"}
				}
				if is(3) {
					if len(members) > 0 || index > 0 {
						continue
					}
					v.Known, v.Group, v.Target = false, placement.Group{}, nil
				}
				do(v, nil)
				replicas(func(r Replica) { do(v, &r) })
				if !v.Known {
					v.Replaced = true
					replicas(func(r Replica) { do(v, &r) })
				}
				if v.Known && len(members) == 0 && index == 0 {
					for _, v.Listing = range []bool{false, true} {
						v.Group.Restoring = true
						do(v, nil)
						replicas(func(r Replica) { do(v, &r) })
						v.Target = slices.DeleteFunc(slices.Clone(v.Target), func(string) bool { return v.Listing })
					}
				}
			}
		}
	}
}

// replicas calls do with each replica in that small model.
func replicas(do func(r Replica)) {
	for phase := range phases {
		for _, standing := range standings {
			for bits := range 1 << 8 {
				is := func(n int) bool { return bits>>n&1 == 1 }
				r := Replica{
					Name: "0", RaftID: 1, Phase: phase, Standing: standing, Foreign: is(0), Unreadable: is(1),
					NeverReported: is(2), Fetching: is(3), Serves: is(4),
					InConf: is(5), KnownIndex: 7,
				}
				if is(6) {
					r.RaftID = 0
				}
				if !r.NeverReported {
					r.Confirmed = 101
				}
				if is(7) {
					if r.Name = "1"; r.InConf {
						r.Exchanged = "it holds the files of group 1"
					}
				}
				do(r)
				if !is(6) && !is(7) {
					r.Founder = true
					do(r)
				}
			}
		}
	}
}
