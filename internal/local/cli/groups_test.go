package cli

import (
	"encoding/json"
	"testing"

	"sheaf.dev/sheaf/client/recordv1"
)

// Each group is listed in one row, with the words that a RecordStore uses. Unknown figures are null, not 0.
func TestGroupRows(t *testing.T) {
	const (
		pending     = recordv1.GroupState_GROUP_STATE_PENDING
		serving     = recordv1.GroupState_GROUP_STATE_SERVING
		damaged     = recordv1.GroupState_GROUP_STATE_DAMAGED
		failed      = recordv1.GroupState_GROUP_STATE_FAILED
		unavailable = recordv1.GroupState_GROUP_STATE_UNAVAILABLE
	)
	row := func(shard string, state recordv1.GroupState, change ...func(*recordv1.Group)) *recordv1.Group {
		g := &recordv1.Group{Group: "7", Shard: shard, State: state}
		for _, c := range change {
			c(g)
		}
		return g
	}
	leads := func(g *recordv1.Group) { g.Leader, g.Records, g.StoredBytes = true, 5, 900 }
	lost := func(g *recordv1.Group) { g.Lost = true }
	learns := func(g *recordv1.Group) { g.Role = recordv1.MemberRole_MEMBER_ROLE_LEARNER }
	joins := func(g *recordv1.Group) { g.Copy = &recordv1.Copy{} }
	old := func(g *recordv1.Group) { g.Records, g.StoredBytes, g.Message = 4, 800, "the shard does not answer" }
	for name, c := range map[string]struct {
		copies []*recordv1.Group
		want   string
	}{
		"serves": {[]*recordv1.Group{row("a", serving), row("b", serving, leads), row("c", serving)},
			`{"group":"7","state":"Serving","copies":3,"leader":"b","records":5,"storedBytes":900}`},
		"two copies of three are being made": {[]*recordv1.Group{row("a", serving, leads), row("b", pending, joins),
			row("c", serving, learns)},
			`{"group":"7","state":"Degraded","copies":1,"leader":"a","records":5,"storedBytes":900}`},
		"a copy of three is not here": {[]*recordv1.Group{row("a", serving, leads), row("b", serving)},
			`{"group":"7","state":"Degraded","copies":2,"leader":"a","records":5,"storedBytes":900}`},
		"a copy moves": {[]*recordv1.Group{row("a", serving, leads), row("b", serving), row("c", serving),
			row("d", pending, joins)},
			`{"group":"7","state":"Serving","copies":3,"leader":"a","records":5,"storedBytes":900}`},
		"a copy is silent": {[]*recordv1.Group{row("a", serving, leads), row("b", unavailable, old)},
			`{"group":"7","state":"Degraded","copies":2,"leader":"a","records":5,"storedBytes":900,` +
				`"message":"the shard does not answer"}`},
		"damaged": {[]*recordv1.Group{row("a", serving, leads), row("b", damaged)},
			`{"group":"7","state":"Damaged","copies":2,"leader":"a","records":5,"storedBytes":900}`},
		"no leader": {[]*recordv1.Group{row("a", serving), row("b", unavailable)},
			`{"group":"7","state":"NoLeader","copies":2,"records":0,"storedBytes":0}`},
		"all are silent": {[]*recordv1.Group{row("a", unavailable, old), row("b", unavailable)},
			`{"group":"7","state":"Unavailable","copies":2,"records":4,"storedBytes":800,` +
				`"message":"the shard does not answer"}`},
		"nobody knows how much": {[]*recordv1.Group{row("a", failed), row("b", failed)},
			`{"group":"7","state":"Failed","copies":2,"records":null,"storedBytes":null}`},
		"lost": {[]*recordv1.Group{row("a", failed, lost)},
			`{"group":"7","state":"DataLost","copies":1,"records":null,"storedBytes":null}`},
		"not made": {[]*recordv1.Group{row("a", pending)},
			`{"group":"7","state":"Pending","copies":0,"records":null,"storedBytes":null}`},
	} {
		rows := GroupRows(append(c.copies, &recordv1.Group{Group: "10", State: pending}), 3)
		if len(rows) != 2 || rows[1].Group != "10" {
			t.Errorf("%s: %+v", name, rows)
			continue
		}
		got, err := json.Marshal(rows[0])
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v, not %s", name, got, err, c.want)
		}
	}
}
