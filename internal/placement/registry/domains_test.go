package registry

import (
	"testing"

	"sheaf.dev/sheaf/internal/placement"
)

func TestAStoreRemembersDomains(t *testing.T) {
	s := &Store{}
	view := func(shards ...placement.Shard) placement.View {
		v := placement.View{Shards: map[string]placement.Shard{}}
		for _, one := range shards {
			v.Shards[one.Name] = one
		}
		return s.withDomains(v)
	}
	first := view(placement.Shard{Name: "a", Domain: "n1"}, placement.Shard{Name: "b", Domain: "n2"},
		placement.Shard{Name: "c"})
	// Shard a is no longer registered, and shard b is in a different domain.
	second := view(placement.Shard{Name: "b", Domain: "n3"})
	for _, c := range []struct {
		view              placement.View
		name, shard, want string
	}{
		{first, "first", "a", "n1"}, {first, "first", "b", "n2"}, {first, "first", "c", ""},
		{second, "second", "a", "n1"}, {second, "second", "b", "n3"}, {second, "second", "c", ""},
		{second, "second", "d", ""},
	} {
		if got := c.view.Domain(c.shard); got != c.want {
			t.Errorf("%s view, shard %s: %q, want %q", c.name, c.shard, got, c.want)
		}
	}
	if first.Domains["b"] != "n2" {
		t.Error("a view was changed that others have")
	}
}
