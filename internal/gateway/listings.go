package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/paging"
	"sheaf.dev/sheaf/internal/placement"
	statuspage "sheaf.dev/sheaf/internal/status/page"
)

// sortedShards lists the shards of a table by name.
func (t *table) sortedShards() []*shard {
	return slices.SortedFunc(maps.Values(t.shards), func(a, b *shard) int { return cmp.Compare(a.name, b.name) })
}

// ListGroups asks all shards. A group that no shard reports is listed as well, with the reason.
func (a *adminServer) ListGroups(ctx context.Context, request *recordv1.ListGroupsRequest) (
	*recordv1.ListGroupsResponse, error) {
	only := request.GetGroup()
	page, field, err := paging.Asked(paging.Groups, request)
	if err == nil && only != "" && page.After != "" {
		field, err = "page_token", errors.New("excludes group, whose rows are one page")
	}
	if err != nil {
		return nil, invalid(field, "%v", err)
	}
	find := a.g.router.wait
	if only != "" {
		find = func(ctx context.Context) (*table, error) { return a.g.tableWith(ctx, only) }
	}
	t, err := find(ctx)
	if err != nil {
		return nil, err
	}
	shards := t.sortedShards()
	answers := make([]*recordv1.ListGroupsResponse, len(shards))
	err = askAll(ctx, len(shards), func(ctx context.Context, i int) { answers[i] = shards[i].groups(ctx, only, page) })
	if err != nil {
		return nil, err
	}
	rows, more := t.groupRows(only, page, shards, answers)
	out := &recordv1.ListGroupsResponse{}
	out.Groups, out.NextPageToken = paging.Cut(page, rows, (*recordv1.Group).GetGroup, more)
	return out, nil
}

// groups asks a shard for its replicas that may be on a page. It returns nil if the shard does not respond, or does not
// hold the only group that was requested.
func (s *shard) groups(ctx context.Context, only string, page paging.Page) *recordv1.ListGroupsResponse {
	if page.After != "" && s.pulse.Silent() {
		return nil // skip a silent shard, because the request for the first page has already waited for it
	}
	from := recordv1.NewAdminServiceClient(s.conn())
	in := &recordv1.ListGroupsRequest{Group: only, PageSize: int32(page.Size),
		PageToken: paging.Token(paging.Groups, page.After)}
	if page.Size == 0 { // with tens of thousands of groups, one response would exceed the message size limit
		answer, _ := recordv1.AllGroups(ctx, from, in) // answer is nil if there is an error
		return answer
	}
	answer, _ := from.ListGroups(ctx, in) // answer is nil if there is an error
	return answer
}

// groupRows merges the responses of shards with the groups in the table. The rows are in the order of the listing,
// and the first row is the first one of the page. If a shard has reported only a part of its groups, the rows that
// may be incomplete are left out, and the result more is true.
func (t *table) groupRows(only string, page paging.Page, shards []*shard, answers []*recordv1.ListGroupsResponse) (
	rows []*recordv1.Group, more bool) {
	through := ""
	for _, answer := range answers {
		if n := len(answer.GetGroups()); n > 0 && answer.GetNextPageToken() != "" {
			if last := answer.GetGroups()[n-1].GetGroup(); !more || placement.CompareGroups(last, through) < 0 {
				through, more = last, true
			}
		}
	}
	onPage := func(group string) bool {
		return placement.CompareGroups(group, page.After) > 0 && (!more || placement.CompareGroups(group, through) <= 0)
	}
	answered := map[string]bool{} // keys have the form group/shard
	listed := map[string]bool{}
	fillMembers(answers)
	for i, answer := range answers {
		for _, row := range answer.GetGroups() {
			if onPage(row.GetGroup()) { // a shard of an older version ignores the page and reports all groups
				answered[row.GetGroup()+"/"+shards[i].name], listed[row.GetGroup()] = true, true
				if r := t.named[row.GetGroup()]; r != nil && r.waits != "" {
					row.Restoring = true // the shard installs the group
				}
				rows = append(rows, row)
			}
		}
	}
	known := t.inOrder()
	if only != "" {
		known = nil
		if r := t.named[only]; r != nil {
			known = []*route{r}
		}
	}
	begin := sort.Search(len(known), func(i int) bool { return placement.CompareGroups(known[i].group, page.After) > 0 })
	for i, r := range known[begin:] {
		if page.Size > 0 && i > page.Size { // the additional row tells the function Cut that another page follows
			break
		}
		if onPage(r.group) {
			rows = append(rows, t.silent(r, answered, listed[r.group])...)
		}
	}
	slices.SortStableFunc(rows, func(a, b *recordv1.Group) int {
		return cmp.Or(placement.CompareGroups(a.GetGroup(), b.GetGroup()), cmp.Compare(a.GetShard(), b.GetShard()))
	})
	return rows, more
}

// silent returns rows for those replicas of a group that were not reported by their shards.
func (t *table) silent(r *route, answered map[string]bool, listed bool) []*recordv1.Group {
	if r.unknown != "" {
		if listed {
			return nil
		}
		return []*recordv1.Group{{Group: r.group, State: recordv1.GroupState_GROUP_STATE_UNAVAILABLE, Message: r.unknown}}
	}
	g := t.view.Groups[r.group]
	var rows []*recordv1.Group
	why := "the shard does not answer for this group: see that it runs, with its volume"
	if t.view.GroupUnknown(r.group) {
		why = t.view.UnusableGroup(r.group) // without a usable key in etcd, a shard that starts does not have the group
	}
	for _, m := range g.Members {
		if !answered[r.group+"/"+m.Shard] {
			rows = append(rows, &recordv1.Group{
				Group: r.group, Uuid: g.UUID.String(), Shard: m.Shard, State: recordv1.GroupState_GROUP_STATE_UNAVAILABLE,
				Message: why, Records: g.Records, StoredBytes: g.Bytes,
			})
		}
	}
	if len(g.Members) == 0 && !listed {
		row := &recordv1.Group{Group: r.group, Uuid: g.UUID.String(), State: recordv1.GroupState_GROUP_STATE_PENDING,
			Restoring: r.waits != ""}
		target := t.view.Targets[r.group]
		if len(target.Shards) > 0 {
			row.Shard = target.Shards[0]
		}
		switch {
		case r.waits != "":
			row.Message = cmp.Or(t.unplaced()[r.group], r.waits)
		case row.GetShard() != "":
			row.Message = "waits for its shard to make it"
		default:
			row.Message = cmp.Or(t.unplaced()[r.group], "the planner has not placed it yet")
		}
		rows = append(rows, row)
	}
	return rows
}

// planned returns, by group, the reasons why groups cannot be placed.
func (t *table) planned() map[string]string {
	_, unplaced := placement.Plan(t.view, t.view.Meta.Policy())
	return unplaced
}

// problemsMax bounds the number of store problems that ListShards reports.
const problemsMax = 100

// storeProblems returns the store's problems: those of etcd, and the keys in etcd that cannot be used. It lists at
// most problemsMax of these keys, followed by a line with the number of the others.
func (g *Gateway) storeProblems(t *table) []string {
	all := t.view.Problems()
	if n := len(all) - problemsMax; n > 0 {
		all = append(all[:problemsMax:problemsMax], fmt.Sprintf("and %d more keys of etcd that cannot be used", n))
	}
	if problem := g.etcdProblem(); problem != "" {
		return append([]string{problem}, all...)
	}
	return all
}

// etcdProblem returns a message that describes a problem of etcd and its remedy, or an empty string if etcd works.
func (g *Gateway) etcdProblem() string {
	last, held := g.cfg.Store.LastAnswer()
	silent := time.Duration(0)
	if !last.IsZero() {
		silent = time.Since(last)
	}
	text, do := statuspage.EtcdProblem(silent, held)
	if text == "" {
		return ""
	}
	return text + ": " + do
}

// ListShards asks the shards on a page for their rows. Shards that do not respond are listed with etcd's data.
func (a *adminServer) ListShards(ctx context.Context, request *recordv1.ListShardsRequest) (
	*recordv1.ListShardsResponse, error) {
	page, field, err := paging.Asked(paging.Shards, request)
	if err != nil {
		return nil, invalid(field, "%v", err)
	}
	t, err := a.g.router.wait(ctx)
	if err != nil {
		return nil, err
	}
	placed := t.placedShards()
	rows := t.knownShards(placed)
	names := slices.Sorted(maps.Keys(rows))
	begin, found := slices.BinarySearch(names, page.After)
	if found {
		begin++
	}
	names = names[begin:]
	if page.Size > 0 && len(names) > page.Size {
		names = names[:page.Size+1] // the additional row tells the function Cut that another page follows
	}
	list := make([]*recordv1.Shard, len(names))
	err = askAll(ctx, len(names), func(ctx context.Context, i int) {
		list[i] = rows[names[i]]
		if s := t.shards[names[i]]; s != nil {
			s.fill(ctx, list[i])
		}
		placed[names[i]].fill(list[i])
	})
	if err != nil {
		return nil, err
	}
	out := &recordv1.ListShardsResponse{}
	if page.After == "" {
		out.Problems, out.Warnings = a.g.storeProblems(t), t.warnings()
	}
	out.Shards, out.NextPageToken = paging.Cut(page, list, (*recordv1.Shard).GetName, false)
	return out, nil
}

// knownShards lists the shards that, according to etcd, are registered, hold a group, or are to receive a group. The
// argument placed is the result of placedShards.
func (t *table) knownShards(placed map[string]*placedShard) map[string]*recordv1.Shard {
	rows := make(map[string]*recordv1.Shard, len(placed))
	for name := range placed {
		row := &recordv1.Shard{Name: name}
		if s := t.shards[name]; s != nil {
			row.Address = s.address
		}
		if known, ok := t.view.Shards[name]; ok {
			row.VolumeUuid, row.Generation = known.VolumeUUID.String(), known.Generation
		}
		rows[name] = row
	}
	for _, g := range t.view.Groups {
		for _, m := range g.Members {
			r := rows[m.Shard]
			if r == nil { // the shard of this member is unknown
				continue
			}
			if r.GetVolumeUuid() == "" {
				r.VolumeUuid = m.VolumeUUID.String()
			}
			r.Groups++
			if g.Leader == m.Shard {
				r.Leaders++
			}
		}
	}
	return rows
}

// fill asks a shard for its row. If the shard does not respond, the row remains unchanged.
func (s *shard) fill(ctx context.Context, row *recordv1.Shard) {
	answer, err := recordv1.NewAdminServiceClient(s.conn()).ListShards(ctx, &recordv1.ListShardsRequest{})
	if list := answer.GetShards(); err == nil && len(list) == 1 {
		list[0].Alive = true
		proto.Reset(row)
		proto.Merge(row, list[0])
	}
}
