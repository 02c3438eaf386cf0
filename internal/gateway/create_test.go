package gateway_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/test/must"
)

// writeGrants writes a grants table with these tenants. It replaces the table at the current revision.
func (c *cluster) writeGrants(tenants string) {
	c.t.Helper()
	there, err := c.store.Access(c.ctx)
	if err == nil {
		err = c.store.PutAccess(c.ctx, fmt.Appendf(nil, `{"version":%d,"grants":[],"tenants":[%s]}`, there.Revision+1, tenants),
			there.Revision)
	}
	must.OK(c.t, err)
}

// carryOut acts for shard a. It creates the groups that etcd lists, until the test has finished.
func (c *cluster) carryOut() {
	for view := range c.store.Watch(c.ctx) {
		for _, g := range view.Groups {
			if len(g.Members) == 0 {
				g.Members, g.Leader = []placement.Member{{Shard: "a", VolumeUUID: c.shards["a"].volume}}, "a"
				_, _ = c.store.PutGroup(c.ctx, g)
			}
		}
	}
}

// A tenant can create as many groups as its quota allows, by first writes and by CreateGroup, even concurrently. When
// the quota is used up, the groups that exist are still served, and groups outside the tenant can still be created.
func TestATenantCreatesAsManyGroupsAsItsQuotaAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		c := newCluster(t, named(), gateway.Config{Registry: registry}, "a")
		go c.carryOut()
		c.writeGrants(`{"name":"one","prefix":"team-","quotas":{"groups":3}},{"name":"two","prefix":"z","quotas":{"records":1}}`)
		put := func(group string) error {
			_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 7, Group: group}})
			return err
		}
		var mu sync.Mutex
		var made []string
		var refusals []error
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				group := fmt.Sprint("team-", n)
				err := put(group)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					made = append(made, group)
				} else {
					refusals = append(refusals, err)
				}
			})
		}
		all.Wait()
		if len(made) != 3 || len(refusals) != 5 {
			t.Fatalf("created: %v; refused: %v; want 3 and 5", made, refusals)
		}
		_, err := c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: "team-x"})
		for _, err := range append(refusals, err) {
			wantError(t, err, codes.ResourceExhausted, "QUOTA_EXCEEDED")
			for _, d := range status.Convert(err).Details() {
				info, ok := d.(*errdetails.ErrorInfo)
				if m := info.GetMetadata(); !ok || m["tenant"] != "one" || m["quota"] != "groups" || m["limit"] != "3" {
					t.Errorf("details %v", d)
				}
			}
			if text := err.Error(); !strings.Contains(text, `tenant one: the quota groups of 3 is used up: 3 groups begin `+
				`with "team-". Put into one of these, delete`) {
				t.Error(text)
			}
		}
		// The other tenant has far fewer groups than its default quota allows, and groups without a tenant have no
		// quota.
		for _, group := range append(made, "z1", "z2", "other-1") {
			if err := put(group); err != nil {
				t.Errorf("put into %s: %v", group, err)
			}
		}
		_, err = c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: made[0]})
		wantError(t, err, codes.AlreadyExists, "GROUP_EXISTS")
		if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP sheaf_gateway_tenant_refused_total Groups of a tenant that were not created, as its quota is used up.
# TYPE sheaf_gateway_tenant_refused_total counter
sheaf_gateway_tenant_refused_total{quota="groups",tenant="one"} 6
sheaf_gateway_tenant_refused_total{quota="groups",tenant="two"} 0
`), "sheaf_gateway_tenant_refused_total"); err != nil {
			t.Error(err)
		}

		// A lower quota leaves the groups as they are. A higher quota takes effect immediately.
		c.writeGrants(`{"name":"one","prefix":"team-","quotas":{"groups":1}}`)
		if err := put(made[2]); err != nil {
			t.Error(err)
		}
		wantError(t, put("team-y"), codes.ResourceExhausted, "QUOTA_EXCEEDED")
		c.writeGrants(`{"name":"one","prefix":"team-","quotas":{"groups":4}}`)
		if err := put("team-y"); err != nil {
			t.Error(err)
		}
		wantError(t, put("team-z"), codes.ResourceExhausted, "QUOTA_EXCEEDED")
	})
}

// A gateway that never read a usable grants table creates no groups, because it does not know which tenant owns a
// group. A gateway that has read a usable table continues to use it.
func TestUnusableTableCreatesNoGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, named(), gateway.Config{}, "a")
		go c.carryOut()
		odd := `{"name":"one","prefix":"team-","quotas":{"later":1}}`
		c.writeGrants(odd)
		create := func(group string) error {
			_, err := c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: group})
			return err
		}
		if err := create("a"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "table of grants") {
			t.Errorf("%v", err)
		}
		c.writeGrants(`{"name":"one","prefix":"team-","quotas":{"groups":1}}`)
		if err := create("team-1"); err != nil {
			t.Error(err)
		}
		c.writeGrants(odd)
		wantError(t, create("team-2"), codes.ResourceExhausted, "QUOTA_EXCEEDED")
		if err := create(uuid.NewString()); err != nil {
			t.Error(err)
		}
	})
}

// The status has a warning before the store reaches its group limit, and the metrics show the number of groups and the
// limit.
func TestALimitOfGroupsIsReportedBeforeItIsReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		meta := named()
		meta.GroupsMax = 10
		c := newCluster(t, meta, gateway.Config{Registry: registry}, "a")
		warned := func(groups int) string {
			t.Helper()
			for n := range groups {
				_, err := c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: fmt.Sprint("g", n)})
				if err != nil && status.Code(err) != codes.AlreadyExists {
					t.Fatal(err)
				}
			}
			for { // repeated until the gateway has all groups
				synctest.Wait()
				if n, err := testutil.GatherAndCount(registry, "sheaf_gateway_groups"); err == nil && n == 1 &&
					testutil.GatherAndCompare(registry, strings.NewReader(fmt.Sprintf(`
# HELP sheaf_gateway_groups Groups of the store, as this gateway knows them.
# TYPE sheaf_gateway_groups gauge
sheaf_gateway_groups %d
# HELP sheaf_gateway_groups_limit Most groups that the store may have, in Named routing.
# TYPE sheaf_gateway_groups_limit gauge
sheaf_gateway_groups_limit 10
`, groups)), "sheaf_gateway_groups", "sheaf_gateway_groups_limit") == nil {
					break
				}
				time.Sleep(time.Second)
			}
			list, err := c.admin.ListShards(c.ctx, &recordv1.ListShardsRequest{})
			must.OK(t, err)
			var found []string
			for _, f := range c.gateway.Status().Findings {
				if f.Severity == finding.Warning && f.Where == "store" {
					found = append(found, f.What)
				}
			}
			if !slices.Equal(found, list.GetWarnings()) {
				t.Errorf("the page warns of %v, and AdminService of %v", found, list.GetWarnings())
			}
			return strings.Join(found, "; ")
		}
		if words := warned(7); words != "" {
			t.Errorf("7 groups of 10: %s", words)
		}
		if words := warned(8); !strings.HasPrefix(words, "it has 8 groups, of at most 10: ") {
			t.Errorf("8 groups of 10: %q", words)
		}
	})
}
