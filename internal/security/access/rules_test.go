package access

import (
	"strings"
	"testing"

	_ "github.com/apache/arrow-go/v18/arrow/flight/gen/flight" // its methods must have rows
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"sheaf.dev/sheaf/internal/security/identity"
)

var (
	store = identity.Store{Domain: "cluster.local", Namespace: "quotes",
		UID: uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")}
	other = identity.Store{Domain: "cluster.local", Namespace: "quotes",
		UID: uuid.MustParse("6ba7b811-9dad-11d1-80b4-00c04fd430c8")}
)

// methods returns the full names of all methods in the services of a store's processes.
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
	as := func(role identity.Role, name string) Caller {
		return Certified(identity.Identity{Store: store, Role: role, Name: name})
	}
	const ok, unknown, denied = codes.OK, codes.Unauthenticated, codes.PermissionDenied
	callers := []Caller{{}, as(identity.Client, "a"), as(identity.Admin, "a"), as(identity.Gateway, ""),
		as(identity.Operator, ""),
		as(identity.Shard, "s"), as(identity.Etcd, ""), account("prod", "loader"),
		user("https://id.example.org", "ada", []string{"admin"}), as(identity.Archive, "")}
	rows := map[string][]codes.Code{
		"/grpc.health.v1.Health/":                    {ok, ok, ok, ok, ok, ok, ok, ok, ok, ok},
		"/grpc.reflection.v1.ServerReflection/":      {unknown, ok, ok, ok, ok, ok, denied, ok, ok, denied},
		"/grpc.reflection.v1alpha.ServerReflection/": {unknown, ok, ok, ok, ok, ok, denied, ok, ok, denied},
		"/sheaf.record.v1.RecordService/":            {unknown, ok, ok, ok, ok, ok, denied, ok, ok, denied},
		"/sheaf.record.v1.RoutingService/":           {unknown, ok, ok, ok, ok, ok, denied, ok, ok, ok},
		"/arrow.flight.protocol.FlightService/":      {unknown, ok, ok, ok, ok, ok, denied, ok, ok, denied},
		"/sheaf.record.v1.AdminService/":             {unknown, denied, ok, ok, ok, ok, denied, denied, denied, denied},
		"/sheaf.record.v1.AccessService/":            {unknown, ok, ok, ok, ok, ok, denied, ok, ok, denied},
		"/sheaf.peer.v1.PeerService/": {unknown, denied, denied, denied, denied, ok, denied, denied, denied,
			denied},
		"/sheaf.peer.v1.ViewCopyService/": {unknown, denied, denied, ok, denied, denied, denied, denied, denied, denied},
		"/sheaf.batch.v1.ViewService/":    {unknown, ok, ok, ok, ok, ok, denied, ok, ok, denied},
		"/sheaf.archive.v1.ArchiveService/": {unknown, denied, denied, denied, denied, denied, denied, denied, denied,
			ok},
		"/sheaf.archive.v1.ArchiveService/EndHistory": {unknown, denied, ok, ok, ok, ok, denied, denied, denied, ok},
		"/sheaf.archive.v1.RestoreService/": {unknown, denied, denied, ok, denied, denied, denied, denied, denied,
			denied},
	}
	// This table contains no grants, so callers may do only what needs no grant.
	empty, err := Compile(&Table{Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, method := range methods(t) {
		service := method[:strings.LastIndex(method, "/")+1]
		row, known := rows[method] // of this method alone
		if used[method] = known; !known {
			row, known = rows[service]
		}
		if !known {
			t.Errorf("%s: say in this test, and in the table, who may call it", method)
			continue
		}
		used[service] = true
		for n := range callers {
			caller := &callers[n]
			for _, table := range []*Compiled{nil, empty} {
				want := row[n]
				if table != nil && RuleOf(method).For == Granted && caller.isKnown() && !caller.MayAll() &&
					(!RuleOf(method).ArchiverToo || !caller.isArchiver()) {
					want = denied
				}
				err := table.Admit(caller, method)
				if status.Code(err) != want {
					t.Errorf("%s by %s, table %v: %v, and must be %v", method, caller, table != nil, err, want)
				}
				if want == denied && (!strings.Contains(err.Error(), caller.String()) || !strings.Contains(err.Error(), method)) {
					t.Errorf("the error does not say who and what: %v", err)
				}
			}
		}
	}
	for service := range rows {
		if !used[service] {
			t.Errorf("there is no service %s", service)
		}
	}
}

func TestUnlistedCallsAreRefused(t *testing.T) {
	root := Certified(identity.Identity{Store: store, Role: identity.Operator})
	for _, method := range []string{"", "/", "x", "/sheaf.record.v1.RecordService", "/sheaf.record.v2.RecordService/Put",
		"/grpc.channelz.v1.Channelz/GetServers",
		"//sheaf.record.v1.RecordService/Put"} {
		if err := (*Compiled)(nil).Admit(&root, method); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%q: %v", method, err)
		}
		if err := (*Compiled)(nil).Admit(&Caller{}, method); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%q: %v", method, err)
		}
	}
}

func TestACertificateOfAnotherStore(t *testing.T) {
	for _, role := range []identity.Role{identity.Shard, identity.Admin} {
		id := identity.Identity{Store: other, Role: role, Name: "a"}
		if _, err := OfStore(store, id, "/x"); status.Code(err) != codes.PermissionDenied ||
			!strings.Contains(err.Error(), id.String()) {
			t.Error(err)
		}
		id.Store = store
		if c, err := OfStore(store, id, "/x"); err != nil || c.String() != string(role)+"/a" {
			t.Error(c, err)
		}
	}
}

// TestEveryCallHasARow checks that every call has a row in rules, that every row belongs to an existing call, and
// that a row has a verb only if the call requires a grant.
func TestEveryCallHasARow(t *testing.T) {
	known := map[string]bool{}
	for _, method := range methods(t) {
		known[method] = true
		if rule := RuleOf(method); rule.For == Nobody || (rule.For == Granted) != (rule.Verb != NoVerb) {
			t.Errorf("%s: say in rules who may call it, and by which verb: %+v", method, rule)
		}
	}
	for method := range rules {
		if !known[method] {
			t.Errorf("there is no call %s", method)
		}
	}
}
