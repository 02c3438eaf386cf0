package gateway_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// restoreOf returns the meta of a store whose groups are to be listed.
func restoreOf(meta placement.Meta) placement.Meta {
	meta.Restore = &placement.Restore{Source: "source:7640", Listing: true}
	return meta
}

// list writes the groups of the restore, and waits until the gateway knows them.
func (c *cluster) list(names ...string) (groups []placement.Group) {
	c.t.Helper()
	for n, name := range names {
		g := placement.NewGroup(c.meta.Routing, name, n)
		g.Restoring = true
		groups = append(groups, g)
	}
	must.OK(c.t, c.store.AddRestoring(c.ctx, c.meta.StoreUUID, time.Unix(9, 0), groups))
	view, err := c.store.View(c.ctx)
	must.OK(c.t, err)
	c.awaitEpoch(int64(view.Epoch))
	return groups
}

// loads checks that calls to a group and to all groups fail with GROUP_LOADING, and that they change nothing.
func (c *cluster) loads(t *testing.T, group string) {
	t.Helper()
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(c.withoutDeadline(), 5*time.Second) // the gateway gives up before its caller
		t.Cleanup(cancel)
		return ctx
	}
	k := &recordv1.RecordKey{Id: 7, Group: group}
	for name, call := range map[string]func() error{
		"Get":    func() error { _, err := c.records.Get(soon(), &recordv1.GetRequest{Key: k}); return err },
		"Put":    func() error { _, err := c.records.Put(soon(), &recordv1.PutRequest{Key: k}); return err },
		"Delete": func() error { _, err := c.records.Delete(soon(), &recordv1.DeleteRequest{Key: k}); return err },
		"Find":   func() error { _, err := c.records.Find(soon(), &recordv1.FindRequest{Id: 7}); return err },
		"Scan": func() error {
			stream, err := c.records.Scan(soon(), &recordv1.ScanRequest{})
			must.OK(t, err)
			return recvAll(stream.Recv)
		},
		"PlanScan": func() error {
			_, err := c.records.PlanScan(soon(), &recordv1.PlanScanRequest{})
			return err
		},
		"BatchPut": func() error {
			stream, err := c.records.BatchPut(soon())
			must.OK(t, err)
			must.OK(t, stream.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{{Key: k}}}))
			must.OK(t, stream.CloseSend())
			answer, err := stream.Recv()
			must.OK(t, err)
			return status.FromProto(answer.GetResults()[0].GetStatus()).Err()
		},
		"DeleteGroup": func() error {
			_, err := c.admin.DeleteGroup(soon(), &recordv1.DeleteGroupRequest{Group: groupOf(group)})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.Unavailable || reasonOf(err) != reason.GroupLoading {
			t.Errorf("%s of group %q: %v (%s)", name, group, err, reasonOf(err))
		}
	}
}

// groupOf returns the name of the only group of a store with hash routing if no group is named.
func groupOf(name string) string {
	if name == "" {
		return "0"
	}
	return name
}

// While the list of a restore is not complete, any name may be that of a restored group: nothing is created, found
// missing or scanned as empty. Then the same holds for the groups that wait, and other groups can be created.
func TestGroupsThatWaitForTheirRestoreAreLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := func() string { return "the source is away" }
		c := newCluster(t, restoreOf(named()), gateway.Config{ListProblem: away}, "a")
		c.loads(t, "alpha")
		if _, err := c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: "alpha"}); reasonOf(err) !=
			reason.GroupLoading {
			t.Errorf("CreateGroup: %v", err)
		}
		if _, err := c.store.Group(c.ctx, "alpha"); !errors.Is(err, placement.ErrNoGroup) {
			t.Errorf("the group was created: %v", err)
		}
		if st := c.gateway.Status(); st.GroupsRestoring != nil || st.Restore == nil || !st.Restore.Listing ||
			st.Restore.Problem != "the source is away" || !strings.Contains(strings.Join(st.Problems, " "), "source is away") {
			t.Errorf("status while listing: %v, %+v, %q", st.GroupsRestoring, st.Restore, st.Problems)
		}

		alpha := c.list("alpha")[0]
		c.loads(t, "alpha")
		st := c.gateway.Status()
		if st.GroupsRestoring == nil || *st.GroupsRestoring != 1 || st.Restore.Listing || st.Groups[0].State != "Restoring" {
			t.Errorf("status while restoring: %v, %+v, %+v", st.GroupsRestoring, st.Restore, st.Groups)
		}
		rows, err := c.admin.ListGroups(c.ctx, &recordv1.ListGroupsRequest{})
		must.OK(t, err)
		if len(rows.GetGroups()) != 1 || !rows.GetGroups()[0].GetRestoring() ||
			!strings.Contains(rows.GetGroups()[0].GetMessage(), "waits for its restore from source:7640") {
			t.Errorf("%v", rows.GetGroups())
		}
		if _, err := c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: "new"}); err != nil {
			t.Errorf("another group: %v", err)
		}

		there, err := c.store.Group(c.ctx, "alpha")
		must.OK(t, err)
		c.awaitEpoch(c.setOwner(there, "a"))
		if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 7, Group: "alpha"}}); err != nil {
			t.Errorf("after the restore: %v", err)
		}
		if st := c.gateway.Status(); *st.GroupsRestoring != 0 || there.UUID != alpha.UUID {
			t.Errorf("%d groups are restored still, %s is now %s", *st.GroupsRestoring, alpha.UUID, there.UUID)
		}
	})
}

// With hash routing, each id belongs to a group, which is loading before and after it is listed. A group whose key was
// lost later is not skipped by scans.
func TestGroupsOfHashRoutingThatWaitAreLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, restoreOf(hash(1)), gateway.Config{}, "a")
		c.loads(t, "")
		if st := c.gateway.Status(); len(st.Groups) != 1 || st.Groups[0].State != "Restoring" {
			t.Errorf("%+v", st.Groups)
		}
		c.list("0")
		c.loads(t, "")
		_, err := c.etcd.Client(t).Delete(c.ctx, "/sheaf/quotes/groups/0")
		must.OK(t, err)
		until(t, "the gateway knows that the group is lost", func() bool {
			return c.gateway.Status().Groups[0].State == "Unknown"
		})
		if n := c.gateway.Status().GroupsRestoring; n != nil {
			t.Errorf("a group is lost, and %d groups wait", *n)
		}
		stream, err := c.records.Scan(c.withoutDeadline(), &recordv1.ScanRequest{})
		must.OK(t, err)
		if err := recvAll(stream.Recv); status.Code(err) != codes.Unavailable ||
			!strings.Contains(err.Error(), "sheaf recover placement") {
			t.Errorf("a scan without the group: %v", err)
		}
	})
}

// While the key of a group cannot be read, nobody knows how many groups wait.
func TestTheNumberOfWaitingGroupsIsUnknownIfAKeyIsUnusable(t *testing.T) {
	for name, meta := range map[string]placement.Meta{"a restore": restoreOf(named()), "rebuilt without it": named()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, meta, gateway.Config{}, "a")
				if meta.Restore != nil {
					c.list("alpha")
				}
				_, err := c.etcd.Client(t).Put(c.ctx, "/sheaf/quotes/groups/alpha", "{")
				must.OK(t, err)
				until(t, "the gateway knows that the key is unusable", func() bool {
					return strings.Contains(strings.Join(c.gateway.Status().Problems, " "), "/groups/alpha")
				})
				if n := c.gateway.Status().GroupsRestoring; n != nil {
					t.Errorf("%d groups wait", *n)
				}
			})
		})
	}
}

// A store that is no restore has no waiting groups, and that is known.
func TestAStoreThatIsNoRestoreSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		c.awaitEpoch(c.setOwner(placement.Group{Name: "x", UUID: uuid.New()}, "a"))
		if st := c.gateway.Status(); st.Restore != nil || st.GroupsRestoring == nil || *st.GroupsRestoring != 0 {
			t.Errorf("%+v, %v", st.Restore, st.GroupsRestoring)
		}
	})
}
