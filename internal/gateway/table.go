package gateway

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
)

// table is the routing of one view. It is immutable, except for the channel changed, which is closed when a newer
// table exists.
type table struct {
	view    placement.View
	hash    []*route // with Hash routing, the route to each group by number, or nil if the group is not created yet
	named   map[string]*route
	shards  map[string]*shard // shards that are registered, or that hold a group and had a known address
	changed chan struct{}
	message func() *recordv1.WatchRoutingResponse
	inOrder func() []*route // routes in the order of listings; sorted once for the many pages of a listing
	places  func() places
	// unplaced returns, by group, the reasons why the planner cannot place groups. It runs the planner, so it is
	// called only for tables with groups that have no shards.
	unplaced func() map[string]string
}

// route finds a key's group. It returns nil if the group does not exist, or if, with Named routing, the key names no
// group.
func (t *table) route(k *key) *route {
	switch {
	case t.hash != nil:
		return t.hash[t.view.Meta.Routing.GroupOf(k.id)]
	case len(k.group) > 0:
		return t.named[string(k.group)]
	}
	return nil
}

// groups lists all routes by name.
func (t *table) groups() []*route {
	return slices.SortedFunc(maps.Values(t.named), func(a, b *route) int { return cmp.Compare(a.group, b.group) })
}

// sortRoutes lists all routes in the order of listings, with numeric names in numeric order before other names.
func (t *table) sortRoutes() []*route {
	return slices.SortedFunc(maps.Values(t.named), func(a, b *route) int {
		return placement.CompareGroups(a.group, b.group)
	})
}

// addUnknown adds routes for the groups whose keys in etcd cannot be used. Calls to these groups then wait, and a scan
// of all groups does not skip the groups.
func (t *table) addUnknown() {
	for _, name := range t.view.Unknown() {
		n, err := strconv.Atoi(name)
		isNumber := err == nil && n >= 0 && n < len(t.hash) && placement.GroupName(n) == name
		if t.named[name] != nil || t.hash != nil && !isNumber {
			continue
		}
		t.named[name] = &route{group: name, holds: true, unknown: t.view.UnusableGroup(name)}
		if t.hash != nil {
			t.hash[n] = t.named[name]
		}
	}
}

// build returns the table in the form that clients receive.
func (t *table) build() *recordv1.WatchRoutingResponse {
	message := &recordv1.WatchRoutingResponse{
		Epoch: t.view.Epoch, StoreUuid: t.view.Meta.StoreUUID.String(), Mode: recordv1.RoutingMode_ROUTING_MODE_NAMED,
	}
	if t.view.Meta.Routing.Mode == placement.Hash {
		message.Mode = recordv1.RoutingMode_ROUTING_MODE_HASH
	}
	for _, r := range t.groups() {
		if len(r.voters) == 0 {
			continue
		}
		g := t.view.Groups[r.group]
		out := &recordv1.GroupRoute{Group: r.group, KeyFirst: g.KeyFirst, KeyLast: g.KeyLast, Addresses: r.voters}
		if r.told != nil {
			out.LeaderAddress = r.told.address
		}
		message.Groups = append(message.Groups, out)
	}
	return message
}

// sameRouting reports whether two tables have the same routes, ignoring epochs.
func sameRouting(a, b *recordv1.WatchRoutingResponse) bool {
	return slices.EqualFunc(a.GetGroups(), b.GetGroups(), func(x, y *recordv1.GroupRoute) bool {
		return proto.Equal(x, y)
	})
}
