package placement

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// viewOf builds a view of one group from strings. The string "a@z1" is a registered shard and its failure domain. In
// members, -a is a voter whose shard is registered with another volume, and +a is a learner.
func viewOf(copies int, shards, members, target string) View {
	volume := func(shard string) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte(shard)) }
	v := View{Meta: Meta{Copies: copies}, Shards: map[string]Shard{}}
	for s := range strings.FieldsSeq(shards) {
		name, domain, _ := strings.Cut(s, "@")
		v.Shards[name] = Shard{Name: name, Domain: domain, VolumeUUID: volume(name)}
	}
	g := Group{Name: "1"}
	for w := range strings.FieldsSeq(members) {
		m := Member{Shard: strings.Trim(w, "+-"), VolumeUUID: volume(strings.Trim(w, "+"))}
		if w[0] == '+' {
			m.Role = Learner
		}
		g.Members = append(g.Members, m)
	}
	v.Groups, v.Targets = map[string]Group{"1": g}, map[string]Target{"1": {Group: "1", Shards: strings.Fields(target)}}
	return v
}

func TestWhatAViewSaysOfTheCopiesOfAGroup(t *testing.T) {
	const three = "a@z1 b@z2 c@z3"
	for name, c := range map[string]struct {
		copies                   int
		shards, members, target  string
		here                     string
		moving                   bool
		shared, silent, homeless string // domains; a shard; "1" if no shard has created the group
	}{
		"settled":        {copies: 3, shards: three, members: "a b c", target: "c b a", here: "a b c"},
		"no target yet":  {copies: 3, shards: three, members: "a b c", here: "a b c"},
		"not created":    {copies: 3, shards: three, target: "a b c", homeless: "1"},
		"only a learner": {copies: 3, shards: three, members: "+a", target: "a", here: "a", homeless: "1"},
		"a copy is being made": {copies: 3, shards: three, members: "a b +c", target: "a b c", here: "a b c",
			moving: true},
		"a copy is to be made": {copies: 3, shards: three, members: "a b", target: "a b c", here: "a b",
			moving: true},
		"a copy goes elsewhere": {copies: 1, shards: three, members: "a", target: "b", here: "a", moving: true},
		"one of three is away":  {copies: 3, shards: "a@z1 b@z2", members: "a b c", target: "a b c", here: "a b"},
		"two of three are away": {copies: 3, shards: "a@z1", members: "a b c", target: "a b c", here: "a",
			silent: "b"},
		"one of two is away":           {copies: 3, shards: "b@z2", members: "a b", target: "a b", here: "b", silent: "a"},
		"its only shard is away":       {copies: 1, members: "a", target: "a", silent: "a"},
		"a learner is away":            {copies: 1, shards: "a@z1", members: "a +b", target: "b", here: "a", moving: true},
		"another volume is registered": {copies: 1, shards: three, members: "-a", target: "a"},
		"a member whose place is lost": {copies: 1, shards: three, members: "-", target: "a", moving: true},
		"two targets in one domain": {copies: 3, shards: "a@z b@y c@x d@z", members: "a b c", target: "a b d",
			here: "a b c", moving: true, shared: "z"},
		"an order avoids it": {copies: 3, shards: "a@z b@y c@x d@z", members: "a b c", target: "d b c",
			here: "a b c", moving: true},
		"a missing copy comes at once": {copies: 3, shards: "a@z b@y c@x d@z", members: "a b", target: "d b c",
			here: "a b", moving: true, shared: "z"},
		"with one copy nothing is shared": {copies: 1, shards: "a@z b@z", members: "a", target: "a b", here: "a",
			moving: true},
	} {
		t.Run(name, func(t *testing.T) {
			v := viewOf(c.copies, c.shards, c.members, c.target)
			var here []string
			for _, m := range v.Groups["1"].Members {
				if v.IsHere(m) {
					here = append(here, m.Shard)
				}
			}
			if got := strings.Join(here, " "); got != c.here {
				t.Errorf("here are %q, want %q", got, c.here)
			}
			if got := v.IsMoving("1"); got != c.moving {
				t.Errorf("moving: %v", got)
			}
			if got := strings.Join(v.SharedDomains("1"), " "); got != c.shared {
				t.Errorf("shared domains %q, want %q", got, c.shared)
			}
			silent, homeless := v.Silent(), v.Homeless()
			if silent["1"] != c.silent {
				t.Errorf("silent: %v, want %q", silent, c.silent)
			}
			if (homeless == 1) != (c.homeless != "") {
				t.Errorf("homeless: %d", homeless)
			}
		})
	}
}

func TestWhatAShardHolds(t *testing.T) {
	v := viewOf(1, "a@z b@y", "a", "b")
	for n, name := range []string{"10", "2", "x"} {
		v.Groups[name] = Group{Name: name, Members: []Member{{Shard: []string{"a", "b", "c"}[n]}}}
	}
	if got := v.Names(); !slices.Equal(got, []string{"1", "2", "10", "x"}) {
		t.Errorf("names %v", got)
	}
	for shard, want := range map[string][]string{"a": {"1", "10"}, "b": {"1", "2"}, "c": {"x"}, "d": nil} {
		if got := v.Holds(shard); !slices.Equal(got, want) {
			t.Errorf("%s holds %v, want %v", shard, got, want)
		}
	}
	if got := slices.Sorted(maps.Keys(v.Silent())); !slices.Equal(got, []string{"x"}) {
		t.Errorf("silent %v", got)
	}
}
