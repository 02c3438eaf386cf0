package shard

import (
	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
)

// decideCase describes a group as etcd knows it, and the group's folder on shard a, if there is one.
type decideCase struct {
	name string
	// folder changes the state of a folder, which at first has Raft id 1 and the membership with index 7. If it is nil,
	// there is no folder.
	folder  func(g *replicas.State)
	members []placement.Member // members according to etcd; shard a has volume 1
	index   int64              // index of this membership in etcd; -1 if etcd has none
	target  string             // target shards
	early   bool               // whether the first load has not begun yet
	unknown bool               // whether etcd lacks the group
	spent   bool               // whether Raft id 9 was already begun on this volume
	want    string
	held    string // the expected action if etcd was rolled back
}

func plain(*replicas.State) {}

// memberOn returns a member on a shard. The volume is given by a number.
func memberOn(shard string, volume byte, raftID uint64, role ...placement.Role) placement.Member {
	m := placement.Member{Shard: shard, VolumeUUID: uuid.UUID{volume}, RaftID: raftID}
	if len(role) > 0 {
		m.Role = role[0]
	}
	return m
}

var (
	others = []placement.Member{memberOn("b", 1, 2), memberOn("c", 1, 3)}
	with   = func(m ...placement.Member) []placement.Member { return append(m, others...) }
	of     = func(m ...placement.Member) []placement.Member { return m }
)

var decideCases = []decideCase{
	{name: "a member", folder: plain, members: with(memberOn("a", 1, 1)), want: "load", held: "load"},
	{name: "the only member", folder: plain, members: of(memberOn("a", 1, 1)), index: -1, want: "load", held: "load"},
	{name: "a learner without data", folder: joins, members: with(memberOn("a", 1, 1, placement.Learner)), want: "join"},
	{name: "a member that has left", folder: plain, members: others, want: "trash", held: "stray"},
	{name: "a member that has left, and is replaced here", folder: plain,
		members: with(memberOn("a", 1, 9, placement.Learner)), want: "trash", held: "stray"},
	{name: "etcd's membership is older", folder: plain, members: others, index: 6, want: "stray", held: "stray"},
	{name: "etcd's membership is older, and the replica's has it", folder: inConf(1, 2, 3), members: others, index: 6,
		want: "claim", held: "stray"},
	{name: "the replica's membership is older, and has it", folder: inConf(1, 2, 3), members: others, want: "trash",
		held: "stray"},
	{name: "etcd's membership is older, and the replica's has it not", folder: inConf(2, 3), members: others, index: 6,
		want: "stray", held: "stray"},
	{name: "etcd's membership is older, and names another one here", folder: inConf(1, 2, 3),
		members: with(memberOn("a", 1, 9)), index: 6, want: "lost",
		held: "stray"},
	{name: "nobody wrote a membership", folder: plain, members: others, index: -1, want: "stray", held: "stray"},
	{name: "the only copy, where nobody ever wrote a membership", folder: func(g *replicas.State) {
		g.KnownIndex = 0
	}, members: others, index: -1,
		want: "stray", held: "stray"},
	{name: "its folder cannot be read", folder: unread, members: others, want: "stray", held: "stray"},
	{name: "its Raft id is not known", folder: func(g *replicas.State) {
		g.RaftID = 0
	}, members: others, want: "stray", held: "stray"},
	{name: "made here and never told", folder: neverReported, members: others, want: "stray", held: "stray"},
	{name: "made here just now and never told", folder: made, members: others, want: "stray", held: "stray"},
	{name: "made here just now and never told, and another one is to be here", folder: made,
		members: with(memberOn("a", 1, 9, placement.Learner)),
		want:    "trash", held: "stray"},
	{name: "made here just now and never told, and etcd's membership is older", folder: made,
		members: with(memberOn("a", 1, 9, placement.Learner)), index: 6,
		want: "stray", held: "stray"},
	{name: "made by an earlier process, not told, and another one is to be here", folder: neverReported,
		members: with(memberOn("a", 1, 9, placement.Learner)),
		want:    "lost", held: "stray"},
	{name: "a learner that is not wanted any more", folder: joins, members: others, want: "trash"},
	{name: "the first learner, not wanted any more", folder: joins, members: others[:1], index: -1, want: "trash"},
	{name: "such a learner, as it fetches", folder: func(g *replicas.State) {
		joins(g)
		g.Fetching = true
	}, members: others, want: "later"},
	{name: "a lost one", folder: lost, members: others, want: "lost", held: "lost"},
	{name: "the only copy is of another volume", folder: copied, members: of(memberOn("a", 2, 1)), want: "lost",
		held: "stray"},
	{name: "a copy is of another volume", folder: copied, members: with(memberOn("a", 2, 1)), want: "stray",
		held: "stray"},
	{name: "a copy of another volume, not named", folder: copied, members: others, want: "stray", held: "stray"},
	{name: "a copy of another volume, replaced", folder: copied, members: with(memberOn("a", 1, 9, placement.Learner)),
		want: "trash", held: "stray"},
	{name: "a copied folder of a member", folder: copied, members: with(memberOn("a", 1, 1)), want: "lost", held: "stray"},
	{name: "a learner is wanted", members: with(memberOn("a", 1, 9, placement.Learner)), want: "make-folder"},
	{name: "a learner is wanted, and its folder holds nothing", folder: remnant,
		members: with(memberOn("a", 1, 9, placement.Learner)), want: "make-folder"},
	{name: "a voter whose folder holds nothing", folder: remnant, members: with(memberOn("a", 1, 9)), want: "", held: ""},
	{name: "the only copy, whose folder holds nothing", folder: remnant, members: of(memberOn("a", 1, 9)), index: -1,
		want: "", held: ""},
	{name: "a learner that was here before", early: true, members: with(memberOn("a", 1, 9, placement.Learner)),
		want: "confess"},
	{name: "a voter's folder is gone", members: with(memberOn("a", 1, 1)), want: "confess"},
	{name: "the only copy's folder is gone", members: of(memberOn("a", 1, 1)), index: -1, want: "lost"},
	{name: "the only copy's volume is gone", members: of(memberOn("a", 2, 1)), index: -1, target: "a", want: "lost"},
	{name: "a voter's volume is gone", members: with(memberOn("a", 2, 1)), target: "a b c", want: ""},
	{name: "a torn member", folder: torn, members: with(memberOn("a", 1, 1)), want: "reinstall"},
	{name: "a torn member, before the first load", folder: torn, early: true, members: with(memberOn("a", 1, 1)),
		want: ""},
	{name: "a torn member that is given up", folder: givenUp, members: with(memberOn("a", 1, 1)), want: "confess"},
	{name: "a torn member that etcd knows is given up", folder: givenUp,
		members: with(placement.Member{Shard: "a", RaftID: 1}), want: "stray"},
	{name: "such a one that was removed", folder: givenUp, members: others, want: "trash"},
	{name: "a member whose volume etcd does not know", folder: plain,
		members: with(placement.Member{Shard: "a", RaftID: 1}), want: "stray", held: "stray"},
	{name: "its folder cannot be read, and it is replaced", folder: unread,
		members: with(memberOn("a", 1, 9, placement.Learner)), want: "trash",
		held: "stray"},
	{name: "etcd does not know where it is", folder: plain, members: with(placement.Member{RaftID: 1}), want: "claim",
		held: "stray"},
	{name: "a new group", target: "a b c", want: "create"},
	{name: "a new group that another makes", target: "b a c", want: ""},
	{name: "a group that others have", members: others, target: "a b c", want: ""},
	{name: "a group that was half made", folder: unread, target: "a", want: "create", held: "stray"},
	{name: "a group that was made", folder: plain, target: "a", want: "announce stray", held: "stray"},
	{name: "a folder of a group without members", folder: plain, target: "b", want: "stray", held: "stray"},
	{name: "an older view", folder: func(g *replicas.State) { g.Confirmed = 101 }, target: "a", want: "", held: "stray"},
	{name: "a group that etcd does not know", folder: plain, unknown: true, want: "stray", held: "stray"},
	{name: "such a group that serves", folder: serves, unknown: true, want: "close stray"},
	{name: "a member, before the first load", folder: plain, early: true, members: with(memberOn("a", 1, 1)), want: "",
		held: ""},
	{name: "a member that loads", folder: in(member.Loading), members: with(memberOn("a", 1, 1))},
	{name: "a member that serves", folder: in(member.Serving), members: with(memberOn("a", 1, 1))},
	{name: "a member that could not be loaded", folder: in(member.Failed), members: with(memberOn("a", 1, 1))},
	{name: "a member that was a stray", folder: all(plain, elsewhere), members: with(memberOn("a", 1, 1)), want: "load",
		held: "load"},
	{name: "a member that was made here", folder: made, members: of(memberOn("a", 1, 1)), index: -1, want: "load",
		held: "load"},
	{name: "a member whose Raft id is not known", folder: func(g *replicas.State) {
		g.RaftID = 0
	}, members: of(memberOn("a", 1, 1)), want: "load", held: "load"},
	{name: "a learner without data, before the first load", folder: joins, early: true,
		members: with(memberOn("a", 1, 1, placement.Learner))},
	{name: "a learner without data, as it fetches", folder: all(joins, fetches),
		members: with(memberOn("a", 1, 1, placement.Learner))},
	{name: "a learner without data that etcd does not know", folder: joins, unknown: true, want: "stray"},
	{name: "a learner without data, of another volume", folder: all(joins, copied),
		members: with(memberOn("a", 1, 1, placement.Learner)), want: "lost", held: "stray"},
	{name: "a torn member, as it fetches", folder: all(torn, fetches), members: with(memberOn("a", 1, 1))},
	{name: "a torn member that has left", folder: torn, members: others, want: "trash"},
	{name: "a torn member that has left, as it fetches", folder: all(torn, fetches), members: others, want: "later"},
	{name: "a torn member without a manifest", folder: all(unread, torn), members: with(memberOn("a", 1, 1)),
		want: "reinstall"},
	{name: "a torn member without a manifest that has left", folder: all(unread, torn), members: others, want: "stray"},
	{name: "a torn member without a manifest that is replaced here", folder: all(unread, torn),
		members: with(memberOn("a", 1, 9, placement.Learner)), want: "trash"},
	{name: "a torn replica that etcd does not know", folder: torn, unknown: true, want: "stray"},
	{name: "a lost one, and a learner is wanted", folder: lost, members: with(memberOn("a", 1, 9, placement.Learner)),
		want: "make-folder lost", held: "lost"},
	{name: "a lost one, and the learner that is wanted was here before", folder: lost, spent: true,
		members: with(memberOn("a", 1, 9, placement.Learner)),
		want:    "confess lost", held: "lost"},
	{name: "a lost one of several copies", folder: lost, members: with(memberOn("a", 1, 1)), want: "confess lost",
		held: "lost"},
	{name: "a lost one of several copies, whose volume is another", folder: lost, members: with(memberOn("a", 2, 1)),
		want: "lost", held: "lost"},
	{name: "the only copy, and it is lost", folder: lost, members: of(memberOn("a", 1, 1)), index: -1, want: "lost",
		held: "lost"},
	{name: "a lost one that etcd does not know", folder: lost, unknown: true, want: "lost", held: "lost"},
	{name: "a lost one that is to be made", folder: lost, target: "a", want: "announce lost", held: "lost"},
	{name: "a learner that was begun before", spent: true, members: with(memberOn("a", 1, 9, placement.Learner)),
		want: "confess"},
	{name: "such a one whose folder holds nothing", folder: remnant, spent: true,
		members: with(memberOn("a", 1, 9, placement.Learner)), want: "confess"},
	{name: "a folder that holds nothing, before the first load", folder: remnant, early: true,
		members: with(memberOn("a", 1, 9, placement.Learner)), want: "confess"},
	{name: "a folder that holds nothing, of a group that others have", folder: remnant, members: others, want: "stray",
		held: "stray"},
	{name: "a voter and a learner are here, and neither has a folder",
		members: with(memberOn("a", 1, 1), memberOn("a", 1, 9, placement.Learner)), want: "confess"},
	{name: "a learner of another volume, and none on this one", members: with(memberOn("a", 2, 9, placement.Learner)),
		want: ""},
	{name: "another group's files", folder: exchanged, members: with(memberOn("a", 1, 1)), want: "stray", held: "stray"},
	{name: "another group's files, and others have the group", folder: exchanged, members: others, want: "stray",
		held: "stray"},
	{name: "a copy of another volume that etcd looks for", folder: copied, members: with(placement.Member{RaftID: 1}),
		want: "stray", held: "stray"},
	{name: "made here just now, and another one is named here", folder: made, members: with(memberOn("a", 1, 9)),
		want: "stray", held: "stray"},
	{name: "made here just now, and the only copy named here is another", folder: made, members: of(memberOn("a", 1, 9)),
		index: -1, want: "stray", held: "stray"},
	// A replica that was never reported to etcd is kept. However, if it was also set aside for another reason, it goes
	// to the trash.
	{name: "made here just now, and set aside before", folder: all(made, elsewhere), members: others, want: "trash",
		held: "stray"},
	{name: "made by an earlier process, and set aside before", folder: all(neverReported, elsewhere), members: others,
		want: "trash", held: "stray"},
	{name: "named by nobody, while etcd was set back before", folder: all(plain, heldBack), members: others, want: "trash",
		held: "stray"},
	{name: "a group that was made, while etcd was set back before", folder: all(made, heldBack), target: "a",
		want: "announce stray", held: "stray"},
	{name: "an older view of a group that is to be made elsewhere", folder: func(g *replicas.State) {
		g.Confirmed = 101
	}, target: "b", want: "", held: "stray"},
	{name: "no target and no members", want: ""},
	{name: "another name", folder: func(g *replicas.State) {
		g.Name = "1"
	}, members: with(memberOn("a", 1, 1)), want: "stray", held: "stray"},
}

// all returns a function that applies several changes to a folder.
func all(folder ...func(*replicas.State)) func(*replicas.State) {
	return func(g *replicas.State) {
		for _, f := range folder {
			f(g)
		}
	}
}

func in(phase member.Phase) func(*replicas.State) {
	return func(g *replicas.State) { g.Phase = phase }
}
func elsewhere(g *replicas.State) { g.Standing.Reason = member.Elsewhere }
func heldBack(g *replicas.State)  { g.Standing.Reason = member.SetBack }
func fetches(g *replicas.State)   { g.Fetching = true }
func lost(g *replicas.State)      { g.Phase = member.Lost }
func exchanged(g *replicas.State) {
	g.Name, g.Exchanged = "1", "it holds the files of group 1"
	g.Standing = member.Standing{Reason: member.OtherGroup, Detail: g.Exchanged}
}

func serves(g *replicas.State)  { g.Serves = true }
func torn(g *replicas.State)    { g.Phase = member.DamagedTail }
func givenUp(g *replicas.State) { g.Phase = member.GivenUp }
func joins(g *replicas.State)   { g.Phase, g.KnownIndex = member.Joining, 0 }
func inConf(voters ...uint64) func(*replicas.State) {
	return func(g *replicas.State) { g.Conf = &raftpb.ConfState{Voters: voters} }
}
func neverReported(g *replicas.State) { g.Standing.Reason = member.Unconfirmed }
func made(g *replicas.State)          { g.Standing.Reason, g.NeverReported = member.Unconfirmed, true }
func copied(g *replicas.State) {
	g.Foreign, g.Standing = true, member.Standing{Reason: member.Foreign, Detail: "it was made on another volume"}
}
func unread(g *replicas.State) {
	g.Unreadable, g.KnownIndex, g.Name = true, 0, ""
	g.Phase = member.Failed
}

// remnant changes a folder so that it no longer shows which replica it belongs to.
func remnant(g *replicas.State) {
	unread(g)
	g.RaftID = 0
}
