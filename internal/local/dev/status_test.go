package dev

import (
	"testing"

	"sheaf.dev/sheaf/client/recordv1"
)

func TestAGroupThatMovesIsOneGroup(t *testing.T) {
	const (
		none    = recordv1.GroupState_GROUP_STATE_UNSPECIFIED
		serving = recordv1.GroupState_GROUP_STATE_SERVING
		damaged = recordv1.GroupState_GROUP_STATE_DAMAGED
		loading = recordv1.GroupState_GROUP_STATE_LOADING
	)
	shard := func(states ...recordv1.GroupState) *recordv1.ShardStatus {
		s := &recordv1.ShardStatus{}
		for i, state := range states {
			if state != none {
				s.Groups = append(s.Groups, &recordv1.Group{Group: string(rune('0' + i)), State: state})
			}
		}
		return s
	}
	type of = *recordv1.ShardStatus
	for _, c := range []struct {
		name           string
		shards         []of
		groups, copies int
		serving, want  int
	}{
		{"all serve", []of{shard(serving, none), shard(none, damaged)}, 2, 1, 2, 2},
		{"one moves", []of{shard(serving, serving), shard(none, loading)}, 2, 1, 2, 2},
		{"one moved, both serve", []of{shard(serving, serving), shard(none, serving)}, 2, 1, 2, 2},
		{"one is not made yet", []of{shard(serving)}, 2, 1, 1, 2},
		{"one loads", []of{shard(serving, loading)}, 2, 1, 1, 2},
		{"a copy more", []of{shard(serving), shard(serving), shard(serving), shard(loading)}, 1, 3, 3, 3},
		{"a copy less", []of{shard(serving), shard(loading), shard(serving)}, 1, 3, 2, 3},
		{"named", []of{shard(serving), shard(serving)}, 0, 3, 2, 2},
	} {
		if serving, want := servingCopies(c.shards, c.groups, c.copies); serving != c.serving || want != c.want {
			t.Errorf("%s: %d of %d, want %d of %d", c.name, serving, want, c.serving, c.want)
		}
	}
}
