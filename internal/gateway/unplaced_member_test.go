package gateway

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/finding"
)

// TestMemberWithoutLocationIsNotListedAsShard checks that no listing contains a shard without a name. A member has an
// empty shard name while its location is unknown, which happens after etcd was rebuilt without a response from the
// member's shard.
func TestMemberWithoutLocationIsNotListedAsShard(t *testing.T) {
	volume := uuid.New()
	table := &table{
		view: placement.View{
			Meta: placement.Meta{StoreUUID: uuid.New(), Copies: 3, Routing: placement.Routing{Mode: placement.Named}},
			Shards: map[string]placement.Shard{"a": {Name: "a", VolumeUUID: volume, Address: "a:1", Generation: 4},
				"b": {Name: "b", VolumeUUID: volume, Address: "b:1", Generation: 5}},
			Groups: map[string]placement.Group{"g": {Name: "g", Leader: "a", Members: []placement.Member{
				{Shard: "a", VolumeUUID: volume, RaftID: 1}, {Shard: "b", VolumeUUID: volume, RaftID: 2}, {RaftID: 3},
			}}},
		},
		shards: map[string]*shard{"a": {name: "a", address: "a:1"}}, unplaced: func() map[string]string { return nil },
	}
	rows := table.knownShards(table.placedShards())
	if names := slices.Sorted(maps.Keys(rows)); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("the shards %q are known", names)
	}
	if a := rows["a"]; a.GetAddress() != "a:1" || a.GetVolumeUuid() != volume.String() || a.GetGeneration() != 4 ||
		a.GetGroups() != 1 || a.GetLeaders() != 1 {
		t.Errorf("shard a: %v", a)
	}
	p := table.fill()
	if len(p.shards) != 2 || p.shards[0].Name != "a" || p.shards[1].Name != "b" {
		t.Errorf("the status lists the shards %+v", p.shards)
	}
	if len(p.findings) != 1 || p.findings[0].Where != "group g" || p.findings[0].Kind != finding.GroupUnanswered {
		t.Errorf("findings: %+v", p.findings)
	}
}
