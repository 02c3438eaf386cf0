package gateway

import (
	"encoding/json"
	"reflect"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// TestAStatusHasABound checks that the size of a response at /status does not grow with the store. The response
// contains the most important rows, and the numbers of rows that it leaves out. The list of a small store is complete.
func TestAStatusHasABound(t *testing.T) {
	volume := uuid.New()
	of := func(groups int) (places, int) {
		view := placement.View{
			Meta:   placement.Meta{StoreUUID: uuid.New(), Copies: 1, Routing: placement.Routing{Mode: placement.Named}},
			Shards: map[string]placement.Shard{"a": {Name: "a", VolumeUUID: volume, Address: "a:1"}},
			Groups: map[string]placement.Group{},
		}
		for n := range groups {
			name := "g" + strconv.Itoa(n)
			on := placement.Member{Shard: "a", VolumeUUID: volume, RaftID: 1}
			if n%20 == 19 {
				on.Shard = "gone" + strconv.Itoa(n)
			}
			view.Groups[name] = placement.Group{Members: []placement.Member{on}, Records: 10, Bytes: 1000}
		}
		table := &table{view: view, named: map[string]*route{}, unplaced: func() map[string]string { return nil }}
		p := table.fill()
		text, err := json.Marshal(Status{Groups: p.groups, Shards: p.shards, Moves: p.moves, Findings: p.findings,
			LeftOut: p.left})
		must.OK(t, err)
		return p, len(text)
	}
	if p, _ := of(groupsListed); p.left != nil || len(p.groups) != groupsListed || p.groups[1].Group != "g1" {
		t.Errorf("a list of %d groups is not whole: %+v", groupsListed, p.left)
	}
	_, size := of(groupsListed)
	const groups = 40_000 // 2,000 of these groups are not served, because 2,000 shards are silent
	p, grown := of(groups)
	if grown > 2*size {
		t.Errorf("the answer has %d bytes, and %d with %d groups", size, grown, groups)
	}
	if p.left == nil {
		t.Fatalf("%d groups are listed, and nothing is said to be left out", len(p.groups))
	}
	unserved := 0
	for _, g := range p.groups {
		if g.State == groupUnavailable {
			unserved++
		}
	}
	if unserved != groups/20 || len(p.failed) != unserved || p.groupCount != groups || p.shardCount != 2001 {
		t.Errorf("%d of %d groups that are not served are in the list; %d groups, %d shards", unserved, len(p.failed),
			p.groupCount, p.shardCount)
	}
	left := groups - groupsListed
	want := &LeftOut{
		Groups: left, GroupStates: map[string]int{groupRouted: left}, Records: int64(10 * left),
		StoredBytes: int64(1000 * left), Shards: 1001, Findings: len(p.problems) - findingsListed,
		Problems: len(p.problems) - findingsListed, Text: p.left.Text,
	}
	if !reflect.DeepEqual(p.left, want) || p.left.Text == "" || want.Findings <= 0 {
		t.Errorf("left out: %+v, want %+v", *p.left, *want)
	}
	for _, s := range p.shards {
		if s.State != silent {
			t.Errorf("shard %s is listed before those that are silent", s.Name)
		}
	}
}
