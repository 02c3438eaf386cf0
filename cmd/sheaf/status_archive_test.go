package main

import (
	"testing"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
)

// The shard that heard of the archiver last says how far the archive is. What no shard knows is said to be unknown.
func TestStatusSaysHowFarTheArchiveIs(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	ago := func(d time.Duration) *recordv1.Shard {
		return &recordv1.Shard{ArchivedThroughUnixNs: new(now.Add(-d).UnixNano())}
	}
	const unknown = "not known: no archiver has told a shard how far it is since the shards started"
	for _, c := range []struct {
		shards []*recordv1.Shard
		want   string
	}{
		{nil, unknown},
		{[]*recordv1.Shard{{}, {}}, unknown},
		{[]*recordv1.Shard{{}, ago(3 * time.Hour), ago(4 * time.Second)}, "archived 4 s ago"},
		{[]*recordv1.Shard{ago(3 * time.Hour), {}}, "archived 3 h ago"},
		{[]*recordv1.Shard{ago(-time.Second)}, "archived 0 s ago"}, // the clock of the shard is ahead
	} {
		if got := archiveWords(c.shards, now); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
