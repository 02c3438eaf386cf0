package turns

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestChooseTurn(t *testing.T) {
	at := func(minutes int) time.Time { return now.Add(time.Duration(minutes) * time.Minute) }
	mine := func(name string, state v1alpha1.ShardState, outdated bool, minutes int) Turn {
		return Turn{Name: name, State: state, Outdated: outdated, Mine: true, Since: at(minutes)}
	}
	other := func(name string, state v1alpha1.ShardState) Turn { return Turn{Name: name, State: state} }
	serving, loading := v1alpha1.ShardServing, v1alpha1.ShardLoading
	for _, test := range []struct {
		name       string
		turns      []Turn
		parkedWell bool
		want       string
		heldUp     string
	}{
		{"nothing to do", []Turn{mine("a", serving, false, 0)}, false, "", ""},
		{"the oldest", []Turn{mine("a", serving, true, 2), mine("b", serving, true, 1), mine("c", serving, false, 0)}, false,
			"b", ""},
		{"of the same age by name", []Turn{mine("b", serving, true, 1), mine("a", serving, true, 1)}, false, "a", ""},
		{"not while another loads", []Turn{mine("a", serving, true, 1), mine("b", loading, false, 2)}, false, "",
			"shard b is Loading"},
		{"not while one of another pool is down", []Turn{mine("a", serving, true, 1), other("x", v1alpha1.ShardNodeDown)},
			false, "", "shard x is NodeDown"},
		{"another pool's is not ours to restart", []Turn{mine("a", serving, false, 1),
			{Name: "x", State: serving, Outdated: true}}, false, "", ""},
		{"a draining one serves", []Turn{mine("a", serving, true, 1), other("x", v1alpha1.ShardDraining)}, false, "a", ""},
		{"a parked one holds up copies", []Turn{mine("a", serving, true, 1), other("x", v1alpha1.ShardParked)}, false, "",
			"shard x is Parked"},
		{"a parked one holds up no single copy", []Turn{mine("a", serving, true, 1), other("x", v1alpha1.ShardParked)}, true,
			"a", ""},
		{"the one that crashes first: rollback", []Turn{mine("a", serving, true, 1),
			mine("b", v1alpha1.ShardCrashLooping, true, 9)}, false, "b", ""},
		{"one that crashes on the new template stops it", []Turn{mine("a", serving, true, 1),
			mine("b", v1alpha1.ShardCrashLooping, false, 9)}, false, "", "shard b is CrashLooping"},
		{"one without an image, while another loads", []Turn{mine("a", v1alpha1.ShardImagePull, true, 1),
			other("x", loading)}, false, "a", ""},
		{"one that serves in part goes although a disk is lost", []Turn{mine("a", v1alpha1.ShardMemoryTooSmall, true, 1),
			mine("b", v1alpha1.ShardDiskLost, false, 1)}, false, "a", ""},
		{"but not while another comes up", []Turn{mine("a", v1alpha1.ShardMemoryTooSmall, true, 1),
			mine("b", loading, false, 1)}, false, "", "shard b is Loading"},
		{"one that loads the wrong template", []Turn{mine("a", loading, true, 1), mine("b", serving, true, 0)}, false, "a",
			""},
		{"not all that are unreachable", []Turn{mine("a", v1alpha1.ShardUnreachable, true, 1),
			mine("b", v1alpha1.ShardUnreachable, true, 1)}, false, "", "shard b is Unreachable"},
		{"not while another restart has begun", []Turn{mine("b", serving, true, 1), {Name: "x", State: serving, Begun: true}},
			false, "", "shard x is about to be restarted"},
		{"nor when both have begun, but for the first", []Turn{{Name: "b", State: serving, Outdated: true, Mine: true,
			Begun: true}, {Name: "a", State: serving, Begun: true}}, false, "", "shard a is about to be restarted"},
		{"the first of two that have begun", []Turn{{Name: "a", State: serving, Outdated: true, Mine: true, Begun: true},
			{Name: "b", State: serving, Begun: true}}, false, "a", ""},
		{"one on a lost node cannot be restarted", []Turn{mine("a", v1alpha1.ShardNodeLost, true, 1)}, false, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 2 { // try both orders of the observed shards
				if got, heldUp := Choose(test.turns, test.parkedWell); got != test.want || heldUp != test.heldUp {
					t.Errorf("got %q, held up by %q; want %q, %q", got, heldUp, test.want, test.heldUp)
				}
				slices.Reverse(test.turns)
				if strings.Contains(test.name, "unreachable") {
					break
				}
			}
		})
	}
}

func TestHoldReason(t *testing.T) {
	for _, test := range []struct {
		name       string
		states     []v1alpha1.ShardState
		parkedWell bool
		want       string
	}{
		{"the one before loads", []v1alpha1.ShardState{v1alpha1.ShardServing, v1alpha1.ShardLoading}, false, ReasonUpdating},
		{"its pod is being made", []v1alpha1.ShardState{v1alpha1.ShardServing, v1alpha1.ShardPending}, false, ReasonUpdating},
		{"it crashes", []v1alpha1.ShardState{v1alpha1.ShardServing, v1alpha1.ShardCrashLooping}, false, ReasonHeldUp},
		{"one loads and one is lost", []v1alpha1.ShardState{v1alpha1.ShardLoading, v1alpha1.ShardNodeLost}, false,
			ReasonHeldUp},
		{"a parked copy", []v1alpha1.ShardState{v1alpha1.ShardServing, v1alpha1.ShardParked}, false, ReasonHeldUp},
		{"parked on purpose", []v1alpha1.ShardState{v1alpha1.ShardLoading, v1alpha1.ShardParked}, true, ReasonUpdating},
	} {
		var turns []Turn
		for _, state := range test.states {
			turns = append(turns, Turn{Name: "a", State: state})
		}
		if got := HoldReason(turns, test.parkedWell); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// reportsOf returns turns with reports. "a 1:500 2:20" means that shard a has applied group 1 up to entry 500 and group
// 2 up to entry 20. "a 1:x" means that a cannot serve group 1.
func reportsOf(words ...string) (turns []Turn) {
	for _, w := range words {
		fields := strings.Fields(w)
		t := Turn{Name: fields[0], State: v1alpha1.ShardServing, Report: &recordv1.ShardStatus{Shard: &recordv1.Shard{}}}
		for _, f := range fields[1:] {
			name, applied, _ := strings.Cut(f, ":")
			g := &recordv1.Group{Group: name, State: recordv1.GroupState_GROUP_STATE_SERVING}
			for _, c := range applied {
				if c == 'x' {
					g.State = recordv1.GroupState_GROUP_STATE_LOADING
					break
				}
				g.AppliedIndex = 10*g.AppliedIndex + uint64(c-'0')
			}
			t.Report.Groups = append(t.Report.Groups, g)
		}
		turns = append(turns, t)
	}
	return turns
}

func TestNeeded(t *testing.T) {
	view := fleettest.View(3, "a b c d", map[string]string{"1": "a b c", "2": "b c d", "3": "a -b d"})
	all := []string{"a 1:5000 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"}
	for name, c := range map[string]struct {
		shard   string
		reports []string
		want    string
	}{
		"all well":             {"c", all, ""},
		"a group lacks a copy": {"d", all, "group 3 "},
		"another's copy is behind": {"c", []string{"a 1:3999 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"},
			"group 1 "},
		"not by much": {"c", []string{"a 1:4000 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"},
			""},
		"its own copy is behind": {"c", []string{"a 1:5000 3:7", "b 1:5000 2:20", "c 1:1 2:20", "d 2:20 3:7"}, ""},
		"another's copy loads": {"c", []string{"a 1:x 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"},
			"group 1 "},
		"another says nothing":           {"c", []string{"a 1:5000 3:7", "c 1:5000 2:20", "d 2:20 3:7"}, "groups 1, 2 "},
		"a shard without groups can go":  {"e", nil, ""},
		"nobody says anything, all wait": {"c", nil, "groups 1, 2 "},
		"another one says what was asked": {"b", []string{"a 1:9 3:7", "b 1:5000 2:20", "c 1:9 2:20", "d 2:20 3:7"},
			"group 1 "},
	} {
		if got := Needed(view, c.shard, reportsOf(c.reports...)); (got == "") != (c.want == "") ||
			!strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
