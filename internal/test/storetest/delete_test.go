package storetest

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/must"
)

// adminClient returns a client for the gateway's AdminService.
func adminClient(t *testing.T, s *Server) recordv1.AdminServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.Addr(), grpc.WithContextDialer(s.Network.Dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.OK(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return recordv1.NewAdminServiceClient(conn)
}

// delete deletes a group. If the outcome is unknown, it calls DeleteGroup again.
func (s *Server) delete(ctx context.Context, a recordv1.AdminServiceClient, group string) error {
	for tries := 0; ; tries++ {
		_, err := a.DeleteGroup(ctx, &recordv1.DeleteGroupRequest{Group: group})
		if status.Code(err) == codes.NotFound && tries > 0 {
			return nil
		}
		if code := status.Code(err); code != codes.Unavailable && code != codes.Unknown || tries == 30 {
			return err
		}
		time.Sleep(time.Second)
	}
}

// folders returns the shards that hold a group's folder, and the shards that have this folder in their trash.
func (s *Server) folders(t *testing.T, uuid string) (held, trashed []int) {
	t.Helper()
	for n := range s.disks {
		for where, found := range map[string]*[]int{"groups": &held, "trash": &trashed} {
			names, err := s.Disk(n).List(path.Join(s.Folder(n), where))
			if err != nil && where == "groups" {
				t.Fatal(err)
			}
			for _, name := range names {
				if strings.HasPrefix(name, uuid) {
					*found = append(*found, n)
				}
			}
		}
	}
	return held, trashed
}

// An empty group is deleted. All members move its files to the trash, and the name can be used for a new group, which
// has no data of the old one. A group with a record is not deleted. No process mistakes the missing group for a sign
// that etcd was rolled back.
func TestAnEmptyGroupIsDeleted(t *testing.T) {
	for _, copies := range []int{1, 3} {
		t.Run(fmt.Sprint(copies, " copies"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { emptyGroupIsDeleted(t, copies) })
		})
	}
}

func emptyGroupIsDeleted(t *testing.T, copies int) {
	s := StartWith(t, Config{Named: true, Shards: 3, Copies: copies})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	a, c := adminClient(t, s), s.Client(t, client.Config{})
	if _, err := c.Put(ctx, client.Key{Group: "full", ID: 1}, []byte("kept"), nil); err != nil {
		t.Fatal(err)
	}
	made, err := a.CreateGroup(ctx, &recordv1.CreateGroupRequest{Group: "empty"})
	must.OK(t, err)
	time.Sleep(10 * time.Second)
	if held, _ := s.folders(t, made.GetUuid()); len(held) != copies {
		t.Fatalf("the group is on shards %v", held)
	}
	err = s.delete(ctx, a, "full")
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "it holds 1 record") {
		t.Errorf("delete of a group with a record: %v", err)
	}
	must.OK(t, s.delete(ctx, a, "empty"))
	time.Sleep(5 * time.Second)
	if err := s.delete(ctx, a, "empty"); status.Code(err) != codes.NotFound {
		t.Errorf("delete of a group that was deleted: %v", err)
	}
	if held, trashed := s.folders(t, made.GetUuid()); len(held) != 0 || len(trashed) != copies {
		t.Errorf("the group is on shards %v, and in the trash of %v", held, trashed)
	}
	again, err := c.Put(ctx, client.Key{Group: "empty", ID: 2}, []byte("new"), nil)
	must.OK(t, err)
	time.Sleep(10 * time.Second)
	list, err := a.ListGroups(ctx, &recordv1.ListGroupsRequest{Group: "empty"})
	if err != nil || len(list.GetGroups()) != copies || list.GetGroups()[0].GetUuid() == made.GetUuid() {
		t.Errorf("the new group: %v, %v", list, err)
	}
	if err := s.delete(ctx, a, "other"); status.Code(err) != codes.NotFound {
		t.Errorf("delete of a group that never was: %v", err)
	}
	// The shards restart. The deleted group is part of the etcd history that they have seen.
	for n := range s.shards {
		s.KillShard(n)
	}
	for n := range s.shards {
		must.OK(t, s.RestartShard(n))
	}
	time.Sleep(30 * time.Second)
	for key, want := range map[client.Key]string{{Group: "full", ID: 1}: "kept", {Group: "empty", ID: 2}: "new"} {
		if r, err := c.Get(ctx, key, nil); err != nil || string(r.Data) != want {
			t.Errorf("%v: %q, %v", key, r.Data, err)
		}
	}
	if r, err := c.Get(ctx, client.Key{Group: "empty", ID: 2}, nil); err != nil || r.Version != again.Version {
		t.Errorf("%v, %v", r, err)
	}
	if found := doctor(t, ctx, s); len(found) != 0 {
		t.Errorf("findings: %+v", found)
	}
	if view, err := s.Store.View(ctx); err != nil || view.Held() != "" || len(view.Groups) != 2 {
		t.Errorf("%v, held: %s, %v", view.Groups, view.Held(), err)
	}
}

// If a put races with the deletion of its group, the put is never lost. Either it prevents the deletion, or it is
// stored in the next group of that name.
func TestPutDuringDeleteIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := StartWith(t, Config{Named: true, Shards: 3, Copies: 3})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		defer cancel()
		a, c := adminClient(t, s), s.Client(t, client.Config{})
		deleted, kept, rounds := 0, 0, 12
		if testing.Short() {
			rounds = 4 // one of each kind
		}
		for round := range rounds {
			key := client.Key{Group: fmt.Sprint("g", round), ID: int64(round)}
			if _, err := a.CreateGroup(ctx, &recordv1.CreateGroupRequest{Group: key.Group}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			var all sync.WaitGroup
			var putErr, deleteErr error
			all.Go(func() {
				time.Sleep([]time.Duration{0, time.Second, 2 * time.Second}[round%3])
				_, putErr = c.Put(ctx, key, []byte("put"), nil)
			})
			all.Go(func() {
				time.Sleep(time.Second)
				deleteErr = s.delete(ctx, a, key.Group)
			})
			if round%4 == 3 {
				all.Go(func() {
					time.Sleep(time.Second)
					s.KillShard(round % 3)
					// While the shard is down, the put cannot create a new group, because that needs as many shards as there are
					// copies.
					time.Sleep(20 * time.Second)
					if err := s.RestartShard(round % 3); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			switch {
			case deleteErr == nil:
				deleted++
			case status.Code(deleteErr) == codes.FailedPrecondition:
				kept++
			default:
				t.Errorf("round %d: delete: %v", round, deleteErr)
			}
			if putErr != nil {
				t.Errorf("round %d: put: %v", round, putErr)
			}
			time.Sleep(10 * time.Second)
			if r, err := c.Get(ctx, key, nil); err != nil || string(r.Data) != "put" {
				t.Errorf("round %d: an acknowledged put is gone: %q, %v; the delete said %v", round, r.Data, err, deleteErr)
			}
		}
		if deleted == 0 || kept == 0 {
			t.Errorf("%d groups were deleted, and %d kept", deleted, kept)
		}
	})
}

// While etcd is unavailable, a group cannot be deleted, although its leader may already have ended it. When etcd is
// back, the group must accept writes again.
func TestFailedDeletionLeavesGroupWritable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := StartWith(t, Config{Named: true, Shards: 3, Copies: 3})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		a, c := adminClient(t, s), s.Client(t, client.Config{})
		if _, err := a.CreateGroup(ctx, &recordv1.CreateGroupRequest{Group: "g"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		s.Etcd.Away()
		soon, stop := context.WithTimeout(ctx, 20*time.Second)
		defer stop()
		if _, err := a.DeleteGroup(soon, &recordv1.DeleteGroupRequest{Group: "g"}); err == nil {
			t.Error("a group was deleted without etcd")
		}
		s.Etcd.Back()
		if _, err := c.Put(ctx, client.Key{Group: "g", ID: 1}, []byte("put"), nil); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if r, err := c.Get(ctx, client.Key{Group: "g", ID: 1}, nil); err != nil || string(r.Data) != "put" {
			t.Errorf("%q, %v", r.Data, err)
		}
	})
}
