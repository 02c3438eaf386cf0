package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/must"
)

// gatewayOf simulates a gateway that has groups, and lists them in pages of one.
type gatewayOf struct {
	recordv1.AdminServiceClient
	groups  []*recordv1.Group
	deleted []string
}

func (g *gatewayOf) ListGroups(_ context.Context, in *recordv1.ListGroupsRequest, _ ...grpc.CallOption) (
	*recordv1.ListGroupsResponse, error) {
	n := 0
	if token := in.GetPageToken(); token != "" {
		if _, err := fmt.Sscan(token, &n); err != nil {
			return nil, err
		}
	}
	out := &recordv1.ListGroupsResponse{Groups: g.groups[n : n+1]}
	if n+1 < len(g.groups) {
		out.NextPageToken = fmt.Sprint(n + 1)
	}
	return out, nil
}

func (g *gatewayOf) DeleteGroup(_ context.Context, in *recordv1.DeleteGroupRequest, _ ...grpc.CallOption) (
	*recordv1.DeleteGroupResponse, error) {
	switch {
	case in.GetResolveOnly():
		return &recordv1.DeleteGroupResponse{GroupUuid: "uuid of " + in.GetGroup()}, nil
	case in.GetGroupUuid() != "uuid of "+in.GetGroup():
		return nil, status.Errorf(codes.NotFound, "no group %s with UUID %s", in.GetGroup(), in.GetGroupUuid())
	case in.GetGroup() == "full":
		return nil, status.Error(codes.FailedPrecondition, "group full holds 3 records")
	}
	g.deleted = append(g.deleted, in.GetGroup())
	return &recordv1.DeleteGroupResponse{}, nil
}

// groupsApp returns the plugin for a store with the simulated gateway g. It also returns the buffers that receive
// standard output and standard error.
func groupsApp(t *testing.T, g *gatewayOf) (a *app, out, words *bytes.Buffer) {
	t.Helper()
	scheme := runtime.NewScheme()
	must.OK(t, v1alpha1.AddToScheme(scheme))
	out, words = &bytes.Buffer{}, &bytes.Buffer{}
	a = newApp(out, words)
	a.namespace = "prod"
	a.objects = fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.RecordStore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "quotes"},
	}).Build()
	a.gateway = func(_ context.Context, store *v1alpha1.RecordStore, do func(recordv1.AdminServiceClient) error) error {
		if store.Name != "quotes" {
			t.Errorf("store %s", store.Name)
		}
		return do(g)
	}
	return a, out, words
}

func TestGroupsAreListed(t *testing.T) {
	g := &gatewayOf{groups: []*recordv1.Group{
		{Group: "2", Shard: "quotes-ssd-0", State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: true, Records: 12345,
			StoredBytes: 3 << 30},
		{Group: "10", Shard: "quotes-ssd-1", State: recordv1.GroupState_GROUP_STATE_FAILED, Message: "manifest is gone"},
	}}
	a, out, _ := groupsApp(t, g)
	must.OK(t, a.call(t.Context(), "groups", "quotes", "--width=100"))
	const want = `GROUP  STATE    COPIES  LEADER        RECORDS   STORED  MESSAGE
2      Serving       1  quotes-ssd-0   12,345  3.0 GiB
10     Failed        1                      ?        ?  manifest is gone
`
	if out.String() != want {
		t.Errorf("%s\nnot\n%s", out.String(), want)
	}
	out.Reset()
	must.OK(t, a.call(t.Context(), "groups", "quotes", "-o", "json"))
	var rows []cli.GroupRow
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil || len(rows) != 2 || rows[0].Group != "2" ||
		rows[1].Records != nil || !strings.Contains(out.String(), `"storedBytes": 3221225472`) {
		t.Errorf("%v: %s", err, out.String())
	}

	var store v1alpha1.RecordStore
	must.OK(t, a.objects.Get(t.Context(), client.ObjectKey{Namespace: "prod", Name: "quotes"}, &store))
	store.Spec.Replication.Copies = 3
	must.OK(t, a.objects.Update(t.Context(), &store))
	out.Reset()
	err := a.call(t.Context(), "groups", "quotes", "-o", "json")
	if err != nil || !strings.Contains(out.String(), `"state": "Degraded"`) {
		t.Errorf("one copy of three serves: %v: %s", err, out.String())
	}
}

// Groups that are not empty are kept, but the command still deletes the other ones, as `sheaf groups delete` does.
func TestGroupsAreDeleted(t *testing.T) {
	g := &gatewayOf{}
	a, out, words := groupsApp(t, g)
	err := a.call(t.Context(), "groups", "delete", "quotes", "old-1", "full", "old-2")
	if err == nil || exitCode(err) != exitFailed || !strings.Contains(err.Error(),
		"groups of store quotes: deleting group full: FAILED_PRECONDITION: group full holds 3 records") {
		t.Errorf("%v", err)
	}
	if strings.Join(g.deleted, " ") != "old-1 old-2" || words.String() != "group old-1: deleted\ngroup old-2: deleted\n" ||
		out.Len() > 0 {
		t.Errorf("%v, %q, %q", g.deleted, words.String(), out.String())
	}
}
