package access

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"sheaf.dev/sheaf/internal/identity"
)

var (
	store = identity.Store{Domain: "cluster.local", Namespace: "quotes", UID: uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")}
	other = identity.Store{Domain: "cluster.local", Namespace: "quotes", UID: uuid.MustParse("6ba7b811-9dad-11d1-80b4-00c04fd430c8")}
)

// methods of all services that a process of a store has.
func methods(t *testing.T) (all []string) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				all = append(all, "/"+string(service.FullName())+"/"+string(service.Methods().Get(j).Name()))
			}
		}
		return true
	})
	if len(all) < 25 {
		t.Fatalf("%d methods are known", len(all))
	}
	return all
}

func TestWhoMayCallWhat(t *testing.T) {
	nobody := Caller{}
	as := func(role identity.Role, name string) Caller {
		return Caller{Identity: identity.Identity{Store: store, Role: role, Name: name}, Known: true}
	}
	elsewhere := func(c Caller) Caller {
		c.Identity.Store = other
		return c
	}
	const ok, unknown, denied = codes.OK, codes.Unauthenticated, codes.PermissionDenied
	callers := []Caller{nobody, as(identity.Client, "a"), as(identity.Admin, "a"), as(identity.Gateway, ""), as(identity.Operator, ""),
		as(identity.Shard, "s"), as(identity.Etcd, ""), elsewhere(as(identity.Shard, "s")), elsewhere(as(identity.Admin, "a")), {Plain: true}}
	rows := map[string][]codes.Code{
		"/grpc.health.v1.Health/":                    {ok, ok, ok, ok, ok, ok, ok, ok, ok, ok},
		"/grpc.reflection.v1.ServerReflection/":      {unknown, ok, ok, ok, ok, ok, ok, denied, denied, ok},
		"/grpc.reflection.v1alpha.ServerReflection/": {unknown, ok, ok, ok, ok, ok, ok, denied, denied, ok},
		"/sheaf.record.v1.RecordService/":            {unknown, ok, ok, ok, ok, ok, ok, denied, denied, ok},
		"/sheaf.record.v1.RoutingService/":           {unknown, ok, ok, ok, ok, ok, ok, denied, denied, ok},
		"/sheaf.record.v1.AdminService/":             {unknown, denied, ok, ok, ok, ok, ok, denied, denied, ok},
		"/sheaf.peer.v1.PeerService/":                {unknown, denied, denied, denied, denied, ok, denied, denied, denied, ok},
	}
	used := map[string]bool{}
	for _, method := range methods(t) {
		service := method[:strings.LastIndex(method, "/")+1]
		row, known := rows[service]
		if !known {
			t.Errorf("%s: say in this test, and in the table, who may call it", method)
			continue
		}
		used[service] = true
		for n, caller := range callers {
			err := Decide(store, caller, method)
			if status.Code(err) != row[n] {
				t.Errorf("%s by %+v: %v, and must be %v", method, caller, err, row[n])
			}
			if row[n] == denied && (!strings.Contains(err.Error(), caller.Identity.String()) || !strings.Contains(err.Error(), method)) {
				t.Errorf("the error does not say who and what: %v", err)
			}
		}
	}
	for service := range rows {
		if !used[service] {
			t.Errorf("there is no service %s", service)
		}
	}
}

func TestWhatIsInNoRowIsForNobody(t *testing.T) {
	root := Caller{Identity: identity.Identity{Store: store, Role: identity.Operator}, Known: true}
	for _, method := range []string{"", "/", "x", "/sheaf.record.v1.RecordService", "/sheaf.record.v2.RecordService/Put", "/grpc.channelz.v1.Channelz/GetServers",
		"//sheaf.record.v1.RecordService/Put"} {
		if err := Decide(store, root, method); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%q: %v", method, err)
		}
		if err := Decide(store, Caller{Plain: true}, method); err == nil {
			t.Errorf("%q without TLS is let in", method)
		}
		if err := Decide(store, Caller{}, method); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%q: %v", method, err)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	who := Caller{Identity: identity.Identity{Store: store, Role: identity.Client, Name: "a"}, Known: true}
	b.ReportAllocs()
	for b.Loop() {
		if err := Decide(store, who, "/sheaf.record.v1.RecordService/Get"); err != nil {
			b.Fatal(err)
		}
	}
}
