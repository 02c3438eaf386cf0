package member

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// situation is a state of a group in etcd. The replica on shard a has the Raft id 1, and its newest membership has
// the index 7.
type situation struct {
	name    string
	view    func(v *View)
	replica func(r *Replica)
	// want lists the kinds of the expected actions. The first is for a group without a folder, and the others are for a
	// replica in each of the phases, in order.
	want string
}

func members(index uint64, m ...placement.Member) func(v *View) {
	return func(v *View) { v.Group.Members, v.Group.ConfIndex = m, index }
}

// viewOf returns a group's view after the first load has begun, as modified by change.
func viewOf(change func(v *View)) View {
	v := View{
		Shard: "a", Volume: here, Known: true, Group: placement.Group{Name: "0", Revision: 50}, EpochBase: 50,
		LoadBegun: true,
	}
	change(&v)
	return v
}

func and[T any](all ...func(*T)) func(*T) {
	return func(one *T) {
		for _, f := range all {
			f(one)
		}
	}
}

func early(v *View)            { v.LoadBegun = false }
func setBack(v *View)          { v.SetBack = true }
func spent(v *View)            { v.Retired = map[uint64]bool{9: true} }
func target(v *View)           { v.Target = []string{"a", "b"} }
func unknown(v *View)          { v.Known, v.Group = false, placement.Group{} }
func deleted(v *View)          { unknown(v); v.Deleted = true }
func replaced(v *View)         { unknown(v); v.Replaced = true }
func unread(v *View)           { unknown(v); v.Unread = "key groups/0 in etcd cannot be used" }
func later(v *View)            { v.Group.Revision = 51 }
func foreign(r *Replica)       { r.Foreign = true }
func fetching(r *Replica)      { r.Fetching = true }
func unreadable(r *Replica)    { r.Unreadable = true }
func nameless(r *Replica)      { r.RaftID, r.Unreadable = 0, true }
func empty(r *Replica)         { r.Empty = true }
func renamed(r *Replica)       { r.Name = "1" }
func inConf(r *Replica)        { r.InConf = true }
func neverReported(r *Replica) { r.NeverReported, r.Standing.Reason = true, Unconfirmed }
func confirmed(r *Replica)     { r.Confirmed = 101 }
func restoring(v *View)        { v.Group.Restoring = true }
func listing(v *View)          { v.Listing = true }
func targetOther(v *View)      { v.Target = []string{"b", "a"} }
func founder(r *Replica)       { r.Founder = true }
func serves(r *Replica)        { r.Serves = true }

var situations = []situation{
	//                               none Pending Joining Loading Serving Failed DamagedTail MissingEntries GivenUp Lost
	{"a voter here", members(7, with(on(here, 1, placement.Voter))...), nil,
		"Confess Load Join Nothing Nothing Nothing Reinstall Reinstall Confess Confess"},
	{"a learner here", members(7, with(on(here, 1, placement.Learner))...), nil,
		"MakeFolder Load Join Nothing Nothing Nothing Reinstall Reinstall Confess MakeFolder"},
	{"the only copy is here", members(0, on(here, 1, placement.Voter)), nil,
		"Lose Load Join Nothing Nothing Nothing Reinstall Reinstall Confess Nothing"},
	{"a voter here, before the first load", and(members(7, with(on(here, 1, placement.Voter))...), early), nil,
		"Confess Nothing Nothing Nothing Nothing Nothing Nothing Nothing Confess Confess"},
	{"a voter here, as it fetches", members(7, with(on(here, 1, placement.Voter))...), fetching,
		"Confess Load Nothing Nothing Nothing Nothing Nothing Nothing Confess Confess"},
	{"a voter here, made elsewhere", members(7, with(on(here, 1, placement.Voter))...), foreign,
		"Confess Lose Lose Lose Lose Lose Lose Lose Lose Confess"},
	{"a voter here, with another name", members(7, with(on(here, 1, placement.Voter))...), renamed,
		"Confess Keep Keep Keep Keep Keep Keep Keep Keep Keep"},
	{"a voter here, while etcd was set back", and(members(7, with(on(here, 1, placement.Voter))...), setBack), nil,
		"Nothing Load Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"a group whose key cannot be used", unread, nil,
		"Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"only others", members(7, others...), nil,
		"Nothing Trash Trash Trash Trash Trash Trash Trash Trash Keep"},
	{"only others, as it fetches", members(7, others...), fetching,
		"Nothing EndFetch EndFetch EndFetch EndFetch EndFetch EndFetch EndFetch EndFetch Keep"},
	{"only others, in an older membership", members(6, others...), nil,
		"Nothing Keep Trash Keep Keep Keep Keep Keep Keep Keep"},
	{"only others, in an older membership than one that has it", members(6, others...), inConf,
		"Nothing Claim Claim Claim Claim Claim Claim Claim Claim Keep"},
	{"only others, and the membership was written by nobody", members(0, others...), nil,
		"Nothing Keep Trash Keep Keep Keep Keep Keep Keep Keep"},
	{"only others, without a manifest", members(7, others...), unreadable,
		"Nothing Keep Keep Keep Keep Keep Keep Keep Keep Keep"},
	{"only others, made elsewhere", members(7, others...), foreign,
		"Nothing Keep Keep Keep Keep Keep Keep Keep Keep Keep"},
	{"only others, made here and never told", members(7, others...), neverReported,
		"Nothing Keep Trash Keep Keep Keep Keep Keep Keep Keep"},
	{"only others, while etcd was set back", and(members(7, others...), setBack), nil,
		"Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"another learner here", members(7, with(on(here, 9, placement.Learner))...), nil,
		"MakeFolder Trash Trash Trash Trash Trash Trash Trash Trash MakeFolder"},
	{"another learner here, that was begun before", and(members(7, with(on(here, 9, placement.Learner))...), spent), nil,
		"Confess Trash Trash Trash Trash Trash Trash Trash Trash Confess"},
	{"another learner here, before the first load", and(members(7, with(on(here, 9, placement.Learner))...), early), nil,
		"Confess Trash Trash Trash Trash Trash Trash Trash Trash Confess"},
	{"another learner here, and nothing is known of the folder", members(7, with(on(here, 9, placement.Learner))...),
		nameless,
		"MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder"},
	{"another learner here, made elsewhere", members(7, with(on(here, 9, placement.Learner))...), foreign,
		"MakeFolder Trash Trash Trash Trash Trash Trash Trash Trash MakeFolder"},
	{"another learner here, without a manifest", members(7, with(on(here, 9, placement.Learner))...), unreadable,
		"MakeFolder Trash Trash Trash Trash Trash Trash Trash Trash MakeFolder"},
	{"another learner here, made here and never told", members(7, with(on(here, 9, placement.Learner))...), neverReported,
		"MakeFolder Trash Trash Trash Trash Trash Trash Trash Trash MakeFolder"},
	{"another voter here, in an older membership", members(6, with(on(here, 9, placement.Voter))...), nil,
		"Confess Lose Trash Lose Lose Lose Lose Lose Lose Confess"},
	{"another voter here, made here and never told", members(6, with(on(here, 9, placement.Voter))...), neverReported,
		"Confess Nothing Trash Nothing Nothing Nothing Nothing Nothing Nothing Confess"},
	{"another voter here, in an older membership than one that has it", members(6, with(on(here, 9, placement.Voter))...),
		inConf,
		"Confess Lose Trash Lose Lose Lose Lose Lose Lose Confess"},
	{"a voter on another volume", members(7, with(on(there, 1, placement.Voter))...), nil,
		"Nothing Keep Keep Keep Keep Keep Keep Keep Keep Nothing"},
	{"the only copy is on another volume", members(0, on(there, 1, placement.Voter)), nil,
		"Lose Lose Lose Lose Lose Lose Lose Lose Lose Nothing"},
	{"etcd does not know where it is", members(7, with(placement.Member{RaftID: 1})...), nil,
		"Nothing Claim Claim Claim Claim Claim Claim Claim Claim Keep"},
	{"no members", members(0), nil,
		"Nothing Keep Trash Keep Keep Keep Keep Keep Keep Keep"},
	{"no members, and it is to be made here", and(members(0), target), nil,
		"Create Announce Trash Announce Announce Announce Announce Announce Announce Announce"},
	{"no members, and it is to be made here, without a manifest", and(members(0), target), unreadable,
		"Create Create Create Create Create Create Create Create Create Create"},
	{"no members, in a view that is older than what was told", and(members(0), target), confirmed,
		"Create Nothing Trash Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"no members, in a view that is as new", and(members(0), target, later), confirmed,
		"Create Announce Trash Announce Announce Announce Announce Announce Announce Announce"},
	// A group that is restored is never created. Without the mark of a founder, a folder that holds only a Raft id is that
	// of a learner, and a complete replica is a member that etcd has forgotten.
	{"it is restored here", and(members(0), restoring, target), nil,
		"MakeFolder Announce MakeFolder Announce Announce Announce Announce Announce Announce Nothing"},
	{"it is restored here, by a founder", and(members(0), restoring, target), founder,
		"MakeFolder Announce Join Announce Announce Announce MakeFolder MakeFolder MakeFolder Nothing"},
	{"it is restored here, by a founder that fetches", and(members(0), restoring, target), and(founder, fetching),
		"MakeFolder Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"it is restored here, by a founder that was made elsewhere", and(members(0), restoring, target),
		and(founder, foreign),
		"MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder Nothing"},
	{"it is restored here, by a founder without a manifest", and(members(0), restoring, target), and(founder, unreadable),
		"MakeFolder MakeFolder Join MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder Nothing"},
	{"it is restored here, and its folder is half made", and(members(0), restoring, target), and(nameless, empty),
		"MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder MakeFolder Nothing"},
	{"it is restored here, and its folder cannot be read", and(members(0), restoring, target), nameless,
		"MakeFolder Announce MakeFolder Announce Announce Announce Announce Announce Announce Nothing"},
	{"it is restored here, before the first load", and(members(0), restoring, target, early), founder,
		"Nothing Announce Nothing Announce Announce Announce Nothing Nothing Nothing Nothing"},
	{"it is restored here, while groups are listed", and(members(0), restoring, target, listing), founder,
		"Nothing Announce Join Announce Announce Announce Nothing Nothing Nothing Nothing"},
	{"it is restored here, in a view that is older than what was told", and(members(0), restoring, target),
		and(founder, confirmed),
		"MakeFolder Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"it is restored here, while etcd was set back", and(members(0), restoring, target, setBack), founder,
		"Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"it is restored elsewhere, after a founder was begun", and(members(0), restoring, targetOther), founder,
		"Nothing Keep Trash Keep Keep Keep Keep Keep Keep Keep"},
	{"it is restored elsewhere, as a founder fetches", and(members(0), restoring, targetOther), and(founder, fetching),
		"Nothing Keep EndFetch Keep Keep Keep Keep Keep Keep Keep"},
	{"it is restored, and has no target", and(members(0), restoring), founder,
		"Nothing Keep Keep Keep Keep Keep Keep Keep Keep Keep"},
	{"a founder, and another shard has reported it", members(0, others[:1]...), founder,
		"Nothing Trash Trash Trash Trash Trash Trash Trash Trash Keep"},
	{"a founder with a later membership, and another shard has reported it", members(6, others...), and(founder, inConf),
		"Nothing Trash Trash Trash Trash Trash Trash Trash Trash Keep"},
	{"a founder, and another learner here", members(6, with(on(here, 9, placement.Learner))...), founder,
		"MakeFolder Trash Trash Trash Trash Trash Trash Trash Trash MakeFolder"},
	{"a founder that etcd lists here", members(0, on(here, 1, placement.Voter)), founder,
		"Lose Load Join Nothing Settle Nothing Reinstall Reinstall Confess Nothing"},
	{"a founder that etcd lists here, while etcd was set back", and(members(0, on(here, 1, placement.Voter)), setBack),
		founder, "Nothing Load Nothing Nothing Settle Nothing Nothing Nothing Nothing Nothing"},
	{"a founder that serves, and etcd lists it here, while etcd was set back",
		and(members(0, on(here, 1, placement.Voter)), setBack), and(founder, serves),
		"Nothing Nothing Nothing Nothing Settle Nothing Nothing Nothing Nothing Nothing"},
	{"a founder that serves, and etcd lists it on another volume, while etcd was set back",
		and(members(0, on(there, 1, placement.Voter)), setBack), and(founder, serves),
		"Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"a founder that serves, and etcd lists another member here, while etcd was set back",
		and(members(0, on(here, 9, placement.Voter)), setBack), and(founder, serves),
		"Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"no members, and it is to be made here, while groups are listed", and(members(0), target, listing), nil,
		"Nothing Announce Trash Announce Announce Announce Announce Announce Announce Announce"},
	{"no members, and it is to be made here, without a manifest, while groups are listed",
		and(members(0), target, listing), unreadable,
		"Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"etcd does not know it", unknown, nil,
		"Nothing Keep Keep Keep Keep Keep Keep Keep Keep Nothing"},
	{"etcd has another group of this name", replaced, nil,
		"Nothing Keep Keep Keep Keep Keep Keep Keep Keep Nothing"},
	{"etcd has another group of this name, and a founder was begun", replaced, founder,
		"Nothing Keep Trash Keep Keep Keep Keep Keep Keep Nothing"},
	{"etcd has another group of this name, as a founder fetches", replaced, and(founder, fetching),
		"Nothing Keep EndFetch Keep Keep Keep Keep Keep Keep Nothing"},
	{"etcd has another group of this name, and a founder was made elsewhere", replaced, and(founder, foreign),
		"Nothing Keep Keep Keep Keep Keep Keep Keep Keep Nothing"},
	{"etcd has another group of this name, and was set back", and(replaced, setBack), founder,
		"Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
	{"etcd does not know it, and was set back", and(unknown, setBack), nil,
		"Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing Nothing"},
}

// TestDecide checks the decision in each situation, for a replica in each phase.
func TestDecide(t *testing.T) {
	for _, c := range situations {
		v := viewOf(c.view)
		got := []string{Decide(&v, nil).Kind.String()}
		for phase := range phases {
			r := Replica{Name: "0", RaftID: 1, Phase: phase, KnownIndex: 7}
			if c.replica != nil {
				c.replica(&r)
			}
			got = append(got, Decide(&v, &r).Kind.String())
		}
		if is := strings.Join(got, " "); is != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, is, c.want)
		}
	}
}

// TestDecideSetsTheStanding checks the standing that Decide gives to a replica that is loaded or could be loaded.
func TestDecideSetsTheStanding(t *testing.T) {
	for _, c := range []struct {
		name    string
		view    func(v *View)
		replica func(r *Replica)
		want    Standing
		named   bool
	}{
		{"named here", members(7, with(on(here, 1, placement.Voter))...), neverReported, Standing{}, true},
		{"named here, while etcd was set back", and(members(7, with(on(here, 1, placement.Voter))...), setBack),
			neverReported,
			Standing{}, false},
		{"has left", members(7, others...), nil, Standing{Reason: HasLeft}, false},
		{"claimed", members(7, with(placement.Member{RaftID: 1})...), neverReported, Standing{Reason: Unconfirmed}, false},
		{"elsewhere", members(6, others...), nil, Standing{Reason: Elsewhere}, false},
		{"other volume", members(7, with(on(there, 1, placement.Voter))...), nil, Standing{Reason: OtherVolume}, false},
		{"replaceable", members(7, with(on(uuid.Nil, 1, placement.Voter))...), nil, Standing{Reason: Replaceable}, false},
		{"unknown", unknown, nil, Standing{Reason: Unknown}, false},
		{"deleted", and(unknown, deleted), nil, Standing{Reason: HasLeft}, false},
		{"deleted, and made elsewhere", and(unknown, deleted), foreign, Standing{Reason: Unknown}, false},
		{"deleted, and unreadable", and(unknown, deleted), unreadable, Standing{Reason: Unknown}, false},
		{"deleted, and half made", and(unknown, deleted), and(nameless, empty), Standing{Reason: HasLeft}, false},
		{"deleted, with files of another group", and(unknown, deleted),
			func(r *Replica) { r.Exchanged = "the files of 1" }, Standing{Reason: Unknown}, false},
		{"deleted, while etcd was set back", and(unknown, deleted, setBack), nil, Standing{Reason: SetBack}, false},
		{"other name", members(7), renamed, Standing{Reason: OtherName, Detail: "0"}, false},
		{"other group", members(7), and(renamed, func(r *Replica) { r.Exchanged = "the files of 1" }),
			Standing{Reason: OtherGroup, Detail: "the files of 1"}, false},
		{"announced", and(members(0), target), nil, Standing{Reason: Unconfirmed}, false},
		{"lost", members(0, on(there, 1, placement.Voter)), func(r *Replica) {
			r.Standing.Reason = Elsewhere
		}, Standing{}, false},
		{"set back", and(members(7, others...), setBack), neverReported, Standing{Reason: SetBack}, false},
		{"set back, and elsewhere before", and(members(7, others...), setBack), func(r *Replica) {
			r.Standing.Reason = Elsewhere
		},
			Standing{Reason: Elsewhere}, false},
	} {
		v := viewOf(c.view)
		r := Replica{Name: "0", RaftID: 1, KnownIndex: 7}
		if c.replica != nil {
			c.replica(&r)
		}
		if a := Decide(&v, &r); a.Standing != c.want || a.Named != c.named {
			t.Errorf("%s: standing %+v, named %t; want %+v, %t", c.name, a.Standing, a.Named, c.want, c.named)
		}
	}
}

// The test generates all combinations of a view and a replica in a small model. Decide must return an action for each
// of them, and no action may break a rule.
func TestEveryDecisionKeepsTheRules(t *testing.T) {
	if testing.Short() {
		t.Skip("millions of decisions")
	}
	seen := map[Kind]int{}
	everything(func(v View, r *Replica) {
		a := Decide(&v, r)
		seen[a.Kind]++
		if broken := breaks(&v, r, a); broken != "" {
			t.Fatalf("%v of %+v\nin %+v: %s", a, r, v, broken)
		}
	})
	for kind := range kinds {
		if seen[kind] == 0 {
			t.Errorf("%v is never decided", kind)
		}
	}
}

// breaks returns the rule that an action breaks. It returns an empty string if the action breaks no rule.
func breaks(v *View, r *Replica, a Action) string {
	named := r != nil && r.RaftID != 0 && Names(v.Group, r.RaftID)
	needs := slices.Contains([]Kind{Load, Join, Reinstall, Announce, ReportPresent, Keep, EndFetch, Trash}, a.Kind)
	runs := slices.Contains([]Kind{Load, Join, Reinstall}, a.Kind)
	switch {
	case a.Kind < 0 || a.Kind >= kinds:
		return "it is of no kind"
	case r == nil && (needs || a.Standing != Standing{}):
		return "there is no replica"
	case v.SetBack && a.Kind != Nothing && a.Kind != Load && a.Kind != Settle:
		return "etcd was set back, and its word is taken (rule 9)"
	case !v.LoadBegun && (runs || a.Kind == MakeFolder):
		return "the first load has not begun"
	case a.Kind == MakeFolder && !v.Group.Restoring && v.Retired[v.here()[0].RaftID]:
		return "a Raft id is used twice (rule 7)"
	case a.Kind == Create && v.Group.Restoring:
		return "a group that is restored is created empty"
	case v.Listing && (a.Kind == Create || a.Kind == MakeFolder && v.Group.Restoring):
		return "the groups of the restore are still being listed"
	case r == nil:
		return ""
	case r.Founder && a.Kind == ReportPresent && !named:
		return "a founder claims a group that it does not have"
	case a.Kind == Settle && (!r.isOneOf(v.here()) || !named || !r.Founder || r.Foreign || r.Phase != Serving):
		return "a founder that etcd does not list serves calls"
	case r.Foreign && (runs || a.Kind == ReportPresent):
		return "it was made elsewhere, and runs (rule 7)"
	case a.Kind == Load && r.Phase != Pending, a.Kind == Join && r.Phase != Joining,
		a.Kind == Join && v.Group.Restoring && !r.Founder,
		a.Kind == Reinstall && r.Phase != DamagedTail && r.Phase != MissingEntries:
		return "its phase does not allow it"
	case runs && a.Standing.Stray() && (!v.Group.Restoring || a.Standing.Reason != Unconfirmed):
		return "a stray is brought into service"
	case a.Kind == Trash && named && !r.Foreign:
		return "etcd names it, and its files are thrown away"
	case a.Kind == Trash && v.Replaced && (!r.Founder || r.Phase != Joining):
		return "etcd has another group of its name, which says nothing about its group, and its files are thrown away"
	case a.Kind == Trash && r.Founder && r.Phase != Joining && len(v.Group.Members) == 0 && v.Group.Restoring:
		return "nobody has reported the group, and its files are thrown away"
	case a.Kind == Trash && r.Phase != Joining && !r.Founder && v.Group.ConfIndex < r.KnownIndex:
		return "it knows a later membership than etcd, and its files are thrown away"
	case r.Fetching && (a.Kind == Trash || a.Kind == Join || a.Kind == Reinstall):
		return "files are being installed"
	case r.Phase == Lost && (a.Kind == ReportPresent || a.Kind == Trash || a.Named):
		return "it is lost"
	}
	return ""
}

// Each pair of a phase and an event has at most one transition. An event that is not in the table leaves the phase
// unchanged.
func TestPhases(t *testing.T) {
	for phase := range phases {
		for event := range events {
			next, ok := phase.After(event)
			switch {
			case next < 0 || next >= phases || !ok && next != phase:
				t.Errorf("%v after %v: %v, %t", phase, event, next, ok)
			case phase == Lost && next != Lost, event == Missing && next != Lost:
				t.Errorf("%v after %v: %v, and it is not here", phase, event, next)
			case next == Serving && phase != Loading && phase != DamagedTail && phase != Serving:
				t.Errorf("%v after %v serves", phase, event)
			case (phase == GivenUp || phase == MissingEntries) && !next.MissingEntries() && next != Lost:
				t.Errorf("%v after %v: %v, and entries are missing", phase, event, next)
			}
		}
	}
	for phase := range phases {
		if strings.Contains(fmt.Sprint(phase), "unknown") {
			t.Errorf("phase %d has no name", phase)
		}
	}
	for event := range events {
		if strings.Contains(fmt.Sprint(event), "unknown") {
			t.Errorf("event %d has no name", event)
		}
	}
}
