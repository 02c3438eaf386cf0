package dev

import (
	"testing"

	"sheaf.dev/sheaf/internal/shard/status"
)

func TestAGroupThatMovesIsOneGroup(t *testing.T) {
	shard := func(states ...string) (s status.Shard) {
		for i, state := range states {
			if state != "" {
				s.Groups = append(s.Groups, status.Group{Group: string(rune('0' + i)), State: state})
			}
		}
		return s
	}
	for _, c := range []struct {
		name           string
		shards         []status.Shard
		groups, copies int
		serving, want  int
	}{
		{"all serve", []status.Shard{shard("Serving", ""), shard("", "Damaged")}, 2, 1, 2, 2},
		{"one moves", []status.Shard{shard("Serving", "Serving"), shard("", "Loading")}, 2, 1, 2, 2},
		{"one moved, both serve", []status.Shard{shard("Serving", "Serving"), shard("", "Serving")}, 2, 1, 2, 2},
		{"one is not made yet", []status.Shard{shard("Serving")}, 2, 1, 1, 2},
		{"one loads", []status.Shard{shard("Serving", "Loading")}, 2, 1, 1, 2},
		{"a copy more", []status.Shard{shard("Serving"), shard("Serving"), shard("Serving"), shard("Loading")}, 1, 3, 3, 3},
		{"a copy less", []status.Shard{shard("Serving"), shard("Loading"), shard("Serving")}, 1, 3, 2, 3},
		{"named", []status.Shard{shard("Serving"), shard("Serving")}, 0, 3, 2, 2},
	} {
		if serving, want := servingCopies(c.shards, c.groups, c.copies); serving != c.serving || want != c.want {
			t.Errorf("%s: %d of %d, want %d of %d", c.name, serving, want, c.serving, c.want)
		}
	}
}
