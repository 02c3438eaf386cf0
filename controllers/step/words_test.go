package step

import "testing"

func TestOneThingIsNoPlural(t *testing.T) {
	for got, want := range map[string]string{
		Count(0, "group", "groups"):                     "0 groups",
		Count(int32(1), "group serves", "groups serve"): "1 group serves",
		Count(int64(2000), "group", "groups"):           "2,000 groups",
		CountOf(0, 1, "group serves", "groups serve"):   "0 of 1 group serves",
		CountOf(1, 3, "group serves", "groups serve"):   "1 of 3 groups serve",
		CountOf(int32(1000), 1001, "group", "groups"):   "1,000 of 1,001 groups",
		All(1, "shard serves", "shards serve"):          "the only shard serves",
		All(12, "shard serves", "shards serve"):         "all 12 shards serve",
		All(0, "shard serves", "shards serve"):          "all 0 shards serve",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
