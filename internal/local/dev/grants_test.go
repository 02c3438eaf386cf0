package dev

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	arrowflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/go-jose/go-jose/v4"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/batchv1"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/shard"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// granted is a store with Named routing, one shard, groups a and b, and a table of grants.
type granted struct {
	*Dev
	t       *testing.T
	servers map[string]string // addresses of gateway and shard
	version int64
}

// startGranted starts a granted store. Each group has a record 1 whose data is the name of the group.
func startGranted(t *testing.T, groups ...string) *granted {
	t.Helper()
	return startSeamed(t, seams{}, groups...)
}

// startSeamed is like startGranted, but with the seams that a test chooses. The test runs in a bubble of
// testing/synctest: etcd, disks and network are in memory. Only the settings and the certificates of the store are
// real files, which are small and cause no waits.
func startSeamed(t *testing.T, seams seams, groups ...string) *granted {
	t.Helper()
	// This cleanup runs last. A shard that has ended still revokes the lease of its wake keys in etcd in the background.
	// This takes a limited time, for which the cleanup waits.
	t.Cleanup(func() { time.Sleep(time.Minute) })
	network := bubbletest.NewNet()
	server := memetcdtest.On(t, network, "etcd:2379")
	seams.etcd = func() (*clientv3.Client, error) { return server.Client(t), nil }
	seams.disk = func(string) vfs.FS { return vfstest.NewMem() }
	seams.listener, seams.dial = network.Listen, network.Dial
	d, err := Start(t.Context(), Config{Dir: t.TempDir(), Shards: 1, Mode: placement.Named, Listen: "127.0.0.1:0",
		RecordsHTTP: "127.0.0.1:0",
		Shard:       shard.Config{ReserveBytes: 16 << 20}, TLS: true, seams: seams})
	must.OK(t, err)
	t.Cleanup(d.Kill)
	must.OK(t, d.WaitReady(t.Context(), nil))
	c := callTLS(t, d, false)
	for _, group := range groups {
		if _, err := c.Put(t.Context(), client.Key{ID: 1, Group: group}, []byte(group), nil); err != nil {
			t.Fatal(err)
		}
	}
	return &granted{Dev: d, t: t, servers: map[string]string{"gateway": d.Addr(),
		"shard": d.Status().Shards[0].GetShard().GetAddress()}}
}

// set sets the table, and waits until the gateway and the shard use it.
func (g *granted) set(table access.Table) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 5*time.Minute)
	defer cancel()
	g.version++
	table.Version = g.version
	text, err := table.Encode()
	must.OK(g.t, err)
	there, err := g.store.Access(ctx)
	must.OK(g.t, err)
	must.OK(g.t, g.store.PutAccess(ctx, text, there.Revision))
	for _, address := range g.servers {
		asks := recordv1.NewAccessServiceClient(g.dial(address, g.as(identity.Admin, "a")))
		for {
			who, err := asks.WhoAmI(ctx, &recordv1.WhoAmIRequest{})
			must.OK(g.t, err)
			if who.GetTableVersion() == g.version {
				break
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
				g.t.Fatalf("table %d is not taken: %v", g.version, who)
			}
		}
	}
}

// as returns the credentials of a client whose certificate has this role and name.
func (g *granted) as(role identity.Role, name string) credentials.TransportCredentials {
	g.t.Helper()
	return credsOf(g.t, g.secured.authority, identity.Identity{Store: g.secured.store, Role: role, Name: name}, nil)
}

func (g *granted) dial(address string, creds credentials.TransportCredentials,
	options ...grpc.DialOption) *grpc.ClientConn {
	g.t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+address, append(options, grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(g.cfg.seams.dial))...)
	must.OK(g.t, err)
	g.t.Cleanup(func() { _ = cc.Close() })
	return cc
}

var allVerbs = []access.Verb{access.Get, access.Put, access.Delete, access.Scan, access.Watch, access.AdminRead,
	access.AdminWrite}

func toCertificate(name string, groups access.Groups, verbs ...access.Verb) access.Grant {
	return access.Grant{Name: "grant-" + name, Subjects: []access.Subject{{Kind: access.Certificate, Name: name}},
		Verbs: verbs, Groups: groups}
}

// requests holds the request for each method, for record 1 of group a.
var requests = map[string]string{
	recordv1.RecordService_Get_FullMethodName:          `{"key":{"id":"1","group":"a"}}`,
	recordv1.RecordService_BatchGet_FullMethodName:     `{"gets":[{"key":{"id":"1","group":"a"}}]}`,
	recordv1.RecordService_Download_FullMethodName:     `{"key":{"id":"1","group":"a"}}`,
	recordv1.RecordService_ListVersions_FullMethodName: `{"key":{"id":"1","group":"a"}}`,
	recordv1.RecordService_Find_FullMethodName:         `{"id":"1"}`,
	recordv1.RecordService_Put_FullMethodName:          `{"key":{"id":"1","group":"a"},"data":"YQ=="}`,
	recordv1.RecordService_BatchPut_FullMethodName:     `{"puts":[{"key":{"id":"1","group":"a"},"data":"YQ=="}]}`,
	recordv1.RecordService_Upload_FullMethodName:       `{"header":{"key":{"id":"1","group":"a"}}}`,
	recordv1.RecordService_Delete_FullMethodName:       `{"key":{"id":"7","group":"a"}}`,
	recordv1.RecordService_PlanScan_FullMethodName:     `{"groups":["a"]}`,
	recordv1.RecordService_Scan_FullMethodName:         `{"group":"a"}`,
	recordv1.RecordService_Watch_FullMethodName:        `{"group":"a"}`,
	batchv1.ViewService_OpenView_FullMethodName:        `{"groups":["a"]}`,
	// These are the commands of Arrow Flight.
	reason.FlightService + "DoGet":                      `{"get":{"group":"a"}}`,
	reason.FlightService + "GetFlightInfo":              `{"scan":{"groups":["a"]}}`,
	reason.FlightService + "DoPut":                      `{"put":{"group":"a"}}`,
	archivev1.ArchiveService_EndHistory_FullMethodName:  `{}`,
	recordv1.AdminService_ListGroups_FullMethodName:     `{"group":"a"}`,
	recordv1.AdminService_CreateGroup_FullMethodName:    `{"group":"a"}`,
	recordv1.AdminService_DeleteGroup_FullMethodName:    `{"group":"a"}`,
	recordv1.AdminService_Verify_FullMethodName:         `{"group":"a"}`,
	recordv1.AdminService_Compact_FullMethodName:        `{"group":"a"}`,
	recordv1.AdminService_AcceptLoss_FullMethodName:     `{"group":"a"}`,
	recordv1.AdminService_ListShards_FullMethodName:     `{}`,
	recordv1.AdminService_WatchLoad_FullMethodName:      `{}`,
	recordv1.AdminService_PlanMoves_FullMethodName:      `{}`,
	recordv1.AdminService_DescribeVolume_FullMethodName: `{}`,
	recordv1.AdminService_SetShardState_FullMethodName:  `{}`,
	recordv1.AdminService_RemoveShard_FullMethodName:    `{}`,
}

// viewsOfGroups are calls about views, which are decided by the groups of the view (TestViewsAreOfThoseWhoMayScan).
var viewsOfGroups = map[string]bool{
	batchv1.ViewService_RenewView_FullMethodName: true, batchv1.ViewService_ListViews_FullMethodName: true,
	batchv1.ViewService_CloseView_FullMethodName: true,
}

// needsAll reports whether a call needs the right to its verb in all groups.
func needsAll(method string) bool {
	return requests[method] == `{}` || method == recordv1.RecordService_Find_FullMethodName
}

// requestOf returns a request for a method, with the given group in place of the group a.
func requestOf(t *testing.T, method protoreflect.MethodDescriptor, group string) proto.Message {
	t.Helper()
	name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	text := strings.ReplaceAll(requests[name], `"a"`, `"`+group+`"`)
	switch method.Input().FullName() {
	case "arrow.flight.protocol.Ticket":
		return &flight.Ticket{Ticket: []byte(text + "\x01\x00\x00\x00\x00\x00\x00\x00")}
	case "arrow.flight.protocol.FlightDescriptor":
		return &flight.FlightDescriptor{Type: flight.FlightDescriptor_CMD, Cmd: []byte(text)}
	case "arrow.flight.protocol.FlightData":
		return &flight.FlightData{FlightDescriptor: &flight.FlightDescriptor{Type: flight.FlightDescriptor_CMD,
			Cmd: []byte(text)}}
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	must.OK(t, err)
	in := kind.New().Interface()
	if err := protojson.Unmarshal([]byte(text), in); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return in
}

// firstAnswer makes a call up to its first answer. If the only record of a batch is refused, firstAnswer returns that
// refusal as the error of the call.
func firstAnswer(ctx context.Context, cc *grpc.ClientConn, method protoreflect.MethodDescriptor,
	in proto.Message,
) error {
	name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	if err != nil {
		return err
	}
	out := kind.New().Interface()
	if in, ok := in.(*flight.FlightData); ok {
		return firstFlightPut(ctx, cc, in.GetFlightDescriptor())
	}
	if !method.IsStreamingClient() && !method.IsStreamingServer() {
		return cc.Invoke(ctx, name, in, out)
	}
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if err != nil {
		return err
	}
	_ = stream.SendMsg(in) // the error is received below
	_ = stream.CloseSend()
	if err := stream.RecvMsg(out); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch out := out.(type) {
	case *recordv1.BatchPutResponse:
		return status.FromProto(out.GetResults()[0].GetStatus()).Err()
	case *recordv1.BatchGetResponse:
		return status.FromProto(out.GetResults()[0].GetStatus()).Err()
	}
	return nil
}

// firstFlightPut puts record 1 by DoPut. If it is refused, firstFlightPut returns the refusal as an error.
func firstFlightPut(ctx context.Context, cc *grpc.ClientConn, to *flight.FlightDescriptor) error {
	stream, err := flight.NewFlightServiceClient(cc).DoPut(ctx)
	if err != nil {
		return err
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "data", Type: arrow.BinaryTypes.LargeBinary}}, nil)
	batch, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema,
		strings.NewReader(`[{"id": 1, "data": "YQ=="}]`))
	if err != nil {
		return err
	}
	defer batch.Release()
	writer := arrowflight.NewRecordWriter(stream, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(to)
	_ = writer.Write(batch) // the error is received below
	_ = stream.CloseSend()
	out, err := stream.Recv()
	if err != nil {
		return err
	}
	var results struct{ Status, Message []*string }
	if err := json.Unmarshal(out.GetAppMetadata(), &results); err != nil || len(results.Status) != 1 {
		return fmt.Errorf("the answer is %s: %w", out.GetAppMetadata(), err)
	}
	if word := results.Status[0]; word != nil && *word == "PERMISSION_DENIED" {
		return status.Error(codes.PermissionDenied, *results.Message[0])
	}
	return nil
}

// Whoever may scan all groups of a view may use it, and nobody else. Splits that are shared are anybody's who may scan.
func TestViewsAreOfThoseWhoMayScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGranted(t, "a", "b")
		g.set(access.Table{Grants: []access.Grant{
			toCertificate("one", access.Groups{Names: []string{"a"}}, access.Scan),
			toCertificate("other", access.Groups{Names: []string{"a"}}, access.Scan),
			toCertificate("elsewhere", access.Groups{Names: []string{"b"}}, access.Scan)}})
		conn := func(who string) *grpc.ClientConn {
			return g.dial(g.servers["gateway"], g.as(identity.Client, who))
		}
		views := func(who string) batchv1.ViewServiceClient { return batchv1.NewViewServiceClient(conn(who)) }
		out, err := views("one").OpenView(t.Context(), &batchv1.OpenViewRequest{Groups: []string{"a"}})
		must.OK(t, err)
		id := out.GetView().GetId()
		for who, want := range map[string]codes.Code{"other": codes.OK, "elsewhere": codes.PermissionDenied} {
			_, err := views(who).RenewView(t.Context(), &batchv1.RenewViewRequest{View: id})
			if status.Code(err) != want {
				t.Errorf("RenewView by %s: %v", who, err)
			}
			list, err := views(who).ListViews(t.Context(), &batchv1.ListViewsRequest{})
			if err != nil || (len(list.GetViews()) == 1) != (want == codes.OK) {
				t.Errorf("ListViews by %s: %v, %v", who, list, err)
			}
			results, err := act(t.Context(), conn(who), "list-views", "")
			if err != nil || (len(results) == 1 && strings.Contains(results[0], id)) != (want == codes.OK) {
				t.Errorf("list-views by %s: %q, %v", who, results, err)
			}
		}
		if _, err := act(t.Context(), conn("one"), "list-views", `{"view": "x"}`); status.Code(err) != codes.InvalidArgument {
			t.Errorf("list-views with a body: %v", err)
		}
		for _, shared := range []bool{false, true} {
			plan, err := recordv1.NewRecordServiceClient(conn("one")).PlanScan(t.Context(), &recordv1.PlanScanRequest{View: id,
				Shared: shared})
			must.OK(t, err)
			want := map[string]codes.Code{"one": codes.OK, "other": codes.InvalidArgument, "elsewhere": codes.InvalidArgument}
			if shared {
				want["other"], want["elsewhere"] = codes.OK, codes.PermissionDenied
			}
			for who, code := range want {
				stream, err := recordv1.NewRecordServiceClient(conn(who)).Scan(t.Context(), &recordv1.ScanRequest{
					Split: plan.GetSplits()[0].GetSplit()})
				must.OK(t, err)
				if _, err := stream.Recv(); status.Code(err) != code {
					t.Errorf("a split (shared %v) by %s: %v, want %v", shared, who, err, code)
				}
			}
		}
		for who, want := range map[string]codes.Code{"elsewhere": codes.PermissionDenied} {
			if _, err := views(who).CloseView(t.Context(), &batchv1.CloseViewRequest{View: id}); status.Code(err) != want {
				t.Errorf("CloseView by %s: %v", who, err)
			}
		}
		_, err = views("other").CloseView(t.Context(), &batchv1.CloseViewRequest{View: id})
		must.OK(t, err)
	})
}

// Three callers make each call that needs a grant, at the gateway and at the shard. The first has exactly this grant,
// the second has this grant for another group, and the third has all other grants.
func TestEveryCallNeedsItsGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGranted(t, "a", "b")
		all, a, b := access.Groups{All: true}, access.Groups{Names: []string{"a"}},
			access.Groups{Prefixes: []string{"b", "aa"}}
		table := access.Table{Grants: []access.Grant{toCertificate("elsewhere", b, allVerbs...)}}
		for _, verb := range allVerbs {
			table.Grants = append(table.Grants, toCertificate("right-"+verb.String(), a, verb),
				toCertificate("all-"+verb.String(), all, verb))
			var others []access.Verb
			for _, other := range allVerbs {
				if other != verb {
					others = append(others, other)
				}
			}
			table.Grants = append(table.Grants, toCertificate("others-"+verb.String(), all, others...))
		}
		g.set(table)
		before := recordsOf(t, g.Dev)
		for at, address := range g.servers {
			for _, method := range ownMethods() {
				name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
				rule := access.RuleOf(name)
				if rule.For != access.Granted || viewsOfGroups[name] ||
					at == "shard" && name == batchv1.ViewService_OpenView_FullMethodName ||
					at == "gateway" && name == archivev1.ArchiveService_EndHistory_FullMethodName { // only shards have it
					continue
				}
				if requests[name] == "" {
					t.Errorf("%s: say in this test what is asked", name)
					continue
				}
				verb := rule.Verb.String()
				right := "right-" + verb
				if needsAll(name) {
					right = "all-" + verb
				}
				for _, who := range []struct {
					name string
					may  bool
				}{{right, true}, {"elsewhere", false}, {"others-" + verb, false}, {"stranger", false}} {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					err := firstAnswer(ctx, g.dial(address, g.as(identity.Client, who.name)), method, requestOf(t, method, "a"))
					cancel()
					code, words := status.Code(err), status.Convert(err).Message()
					switch {
					case who.may && (code == codes.PermissionDenied || code == codes.Unauthenticated ||
						code == codes.DeadlineExceeded):
						t.Errorf("at the %s, %s by %s: %v", at, name, who.name, err)
					case !who.may && (code != codes.PermissionDenied || !strings.Contains(words, "client/"+who.name) ||
						!strings.Contains(words, verb)):
						t.Errorf("at the %s, %s by %s must be refused, with who and what: %v", at, name, who.name, err)
					}
				}
			}
		}
		after := recordsOf(t, g.Dev)
		if len(before) != len(after) {
			t.Errorf("%v were stored, and now %v", before, after)
		}
	})
}

// A refusal does not reveal whether a group or a record exists. The answers in both cases are the same, byte for byte.
func TestARefusalRevealsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGranted(t, "a", "b")
		g.set(access.Table{Grants: []access.Grant{toCertificate("elsewhere", access.Groups{Names: []string{"b"}},
			allVerbs...)}})
		for at, address := range g.servers {
			cc := g.dial(address, g.as(identity.Client, "elsewhere"))
			for _, method := range ownMethods() {
				name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
				if access.RuleOf(name).For != access.Granted || needsAll(name) || viewsOfGroups[name] ||
					at == "shard" && name == batchv1.ViewService_OpenView_FullMethodName {
					continue
				}
				var answers []string
				for _, group := range []string{"a", "missing"} {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					err := firstAnswer(ctx, cc, method, requestOf(t, method, group))
					cancel()
					answers = append(answers, strings.ReplaceAll(fmt.Sprint(err), fmt.Sprintf("%q", group), "GROUP"))
				}
				for _, id := range []string{"1", "987654321"} { // only the first of these records exists
					in := requestOf(t, method, "a")
					if key := protojson.Format(in); strings.Contains(key, `"1"`) {
						must.OK(t, protojson.Unmarshal([]byte(strings.ReplaceAll(key, `"1"`, `"`+id+`"`)), in))
					}
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					answer := fmt.Sprint(firstAnswer(ctx, cc, method, in))
					cancel()
					if want := strings.ReplaceAll(answers[0], "GROUP", `"a"`); answer != want {
						t.Errorf("at the %s, %s of record %s says something else:\n%s\n%s", at, name, id, answer, want)
					}
				}
				if answers[0] != answers[1] || !strings.Contains(answers[0], "GROUP") {
					t.Errorf("at the %s, %s tells a group that is there from one that is not:\n%s\n%s", at, name, answers[0],
						answers[1])
				}
			}
		}
		view, err := g.store.View(t.Context())
		must.OK(t, err)
		if len(view.Groups) != 2 {
			t.Errorf("refused calls have made groups: %v", view.Groups)
		}
	})
}

// Records of a batch are refused one by one if they are in groups without a grant.
func TestRecordsOfABatchAreRefusedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGranted(t, "a", "b")
		g.set(access.Table{Grants: []access.Grant{toCertificate("c", access.Groups{Names: []string{"b"}}, access.Get,
			access.Put)}})
		groups := []string{"a", "b", "missing", "b"}
		for at, address := range g.servers {
			records := recordv1.NewRecordServiceClient(g.dial(address, g.as(identity.Client, "c")))
			var puts []*recordv1.PutRequest
			var gets []*recordv1.GetRequest
			for _, group := range groups {
				key := &recordv1.RecordKey{Id: 1, Group: group}
				puts, gets = append(puts, &recordv1.PutRequest{Key: key, Data: []byte(group)}),
					append(gets, &recordv1.GetRequest{Key: key})
			}
			put, err := records.BatchPut(t.Context())
			must.OK(t, err)
			must.OK(t, put.Send(&recordv1.BatchPutRequest{Puts: puts}))
			stored, err := put.Recv()
			must.OK(t, err)
			for i, result := range stored.GetResults() {
				if got := codes.Code(result.GetStatus().GetCode()); (got == codes.OK) != (groups[i] == "b") || got != codes.OK &&
					got != codes.PermissionDenied {
					t.Errorf("at the %s, put in %s: %v", at, groups[i], result)
				}
			}
			get, err := records.BatchGet(t.Context(), &recordv1.BatchGetRequest{Gets: gets})
			must.OK(t, err)
			seen := 0
			for {
				out, err := get.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				must.OK(t, err)
				for _, result := range out.GetResults() {
					seen++
					group := groups[result.GetPosition()]
					if got := codes.Code(result.GetStatus().GetCode()); (got == codes.OK) != (group == "b") || got != codes.OK &&
						got != codes.PermissionDenied {
						t.Errorf("at the %s, get in %s: %v", at, group, result)
					}
				}
			}
			if seen != len(groups) {
				t.Errorf("at the %s: %d results of %d", at, seen, len(groups))
			}
		}
	})
}

// Only a gateway may name another caller on whose behalf it calls.
func TestOnlyGatewaysMayNameTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGranted(t, "a", "b")
		g.set(access.Table{Grants: []access.Grant{
			toCertificate("right", access.Groups{Names: []string{"a"}}, access.Get),
			toCertificate("wrong", access.Groups{Names: []string{"b"}}, access.Get),
		}})
		get := func(address string, role identity.Role, name string, headers ...string) codes.Code {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			for _, header := range headers {
				ctx = metadata.AppendToOutgoingContext(ctx, "sheaf-caller", header)
			}
			_, err := recordv1.NewRecordServiceClient(g.dial(address, g.as(role, name))).
				Get(ctx, &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: 1, Group: "a"}})
			return status.Code(err)
		}
		const ok, denied, unknown = codes.OK, codes.PermissionDenied, codes.Unauthenticated
		for at, address := range g.servers {
			for header, want := range map[string]codes.Code{"": denied, "client/right": denied, "admin/ada": denied,
				"gateway": denied, "operator": denied} {
				if got := get(address, identity.Client, "wrong", header); got != want {
					t.Errorf("at the %s, with the header %q: %s", at, header, got)
				}
			}
			if got := get(address, identity.Client, "right", "client/wrong"); got != ok {
				t.Errorf("at the %s, a header takes a right away: %s", at, got)
			}
		}
		shard := g.servers["shard"]
		for header, want := range map[string]codes.Code{
			"client/right": ok, "client/wrong": denied, "client/stranger": denied, "admin/ada": ok, "serviceaccount/a/b": denied,
			"gateway": unknown, "operator": unknown, "shard/shard-0": unknown, "": unknown, "nobody": unknown,
			"client/%72ight": unknown,
		} {
			if got := get(shard, identity.Gateway, "", header); got != want {
				t.Errorf("a gateway that calls for %q: %s instead of %s", header, got, want)
			}
		}
		if got := get(shard, identity.Gateway, "", "client/right", "admin/ada"); got != unknown {
			t.Errorf("two headers: %s", got)
		}
		if got := get(g.servers["gateway"], identity.Gateway, "", "client/wrong"); got != ok {
			t.Errorf("a gateway takes the word of another: %s", got)
		}
	})
}

// Open streams end when the table no longer allows them, even if no messages are sent on them.
func TestOpenStreamsEndWithTheirGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGranted(t, "a", "b")
		admin := callTLS(t, g.Dev, false)
		for id := range int64(24) {
			if _, err := admin.Put(t.Context(), client.Key{ID: 100 + id, Group: "a"}, make([]byte, 1<<20), nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := admin.Upload(t.Context(), client.Key{ID: 99, Group: "a"}, strings.NewReader(strings.Repeat("x", 24<<20)),
			nil); err != nil {
			t.Fatal(err)
		}
		g.set(access.Table{Grants: []access.Grant{toCertificate("c", access.Groups{Names: []string{"a", "b"}}, allVerbs...)}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		key := func(id int64) *recordv1.RecordKey { return &recordv1.RecordKey{Id: id, Group: "a"} }
		type opened struct {
			name string
			recv func() error
		}
		var streams []opened
		open := func(name string, stream grpc.ClientStream, err error, in, out proto.Message, answers bool) {
			t.Helper()
			if err != nil {
				t.Fatal(name, err)
			}
			if err := stream.SendMsg(in); err != nil {
				t.Fatal(name, err)
			}
			switch in.(type) {
			case *recordv1.WatchRequest, *recordv1.ScanRequest, *recordv1.DownloadRequest:
				_ = stream.CloseSend() // never fails
			}
			if answers {
				if err := stream.RecvMsg(out); err != nil {
					t.Fatal(name, err)
				}
			}
			streams = append(streams, opened{name, func() error { return stream.RecvMsg(out) }})
		}
		bidi := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
		for at, address := range g.servers {
			cc := g.dial(address, g.as(identity.Client, "c"))
			stream := func(method string, in, out proto.Message, answers bool) {
				t.Helper()
				s, err := cc.NewStream(ctx, bidi, method)
				open(method+" at the "+at, s, err, in, out, answers)
			}
			stream(recordv1.RecordService_Watch_FullMethodName, &recordv1.WatchRequest{Group: "a"}, &recordv1.WatchResponse{},
				true)
			stream(recordv1.RecordService_Scan_FullMethodName, &recordv1.ScanRequest{Group: "a"}, &recordv1.ScanResponse{}, true)
			stream(recordv1.RecordService_Download_FullMethodName, &recordv1.DownloadRequest{Key: key(99)},
				&recordv1.DownloadResponse{}, true)
			stream(recordv1.RecordService_BatchPut_FullMethodName,
				&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{{Key: key(2), Data: []byte("x")}}},
				&recordv1.BatchPutResponse{}, true)
			stream(recordv1.RecordService_Upload_FullMethodName,
				&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(3)}}},
				&recordv1.UploadResponse{}, false)
		}
		// A change of the table that keeps the permission of a stream leaves the stream open.
		g.set(access.Table{Grants: []access.Grant{toCertificate("c", access.Groups{All: true}, allVerbs...)}})
		g.set(access.Table{Grants: []access.Grant{toCertificate("c", access.Groups{Names: []string{"b"}}, access.Get,
			access.Scan, access.Watch)}})
		for _, s := range streams {
			var err error
			for err == nil {
				err = s.recv()
			}
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s: %v", s.name, err)
			}
		}
		if _, err := admin.Get(t.Context(), client.Key{ID: 3, Group: "a"}, nil); !errors.Is(err, client.ErrNotFound) {
			t.Error("a record was stored by an upload that was cut off:", err)
		}
	})
}

// tokenIssuer is an issuer of tokens.
type tokenIssuer struct {
	t   *testing.T
	key *ecdsa.PrivateKey
	url string
}

func newTokens(t *testing.T, url string) *tokenIssuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	return &tokenIssuer{t, key, url}
}

// issuer returns the entry for k in a table of grants.
func (k *tokenIssuer) issuer() access.Issuer {
	k.t.Helper()
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: k.key.Public(), KeyID: "one",
		Algorithm: string(jose.ES256), Use: "sig"}}})
	must.OK(k.t, err)
	return access.Issuer{URL: k.url, ServiceAccounts: true, Keys: keys}
}

// issue makes a token of the given ServiceAccount.
func (k *tokenIssuer) issue(account, audience string, ends time.Time) string {
	k.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: k.key, KeyID: "one"}},
		nil)
	must.OK(k.t, err)
	claims, err := json.Marshal(map[string]any{"iss": k.url, "sub": "system:serviceaccount:prod:" + account,
		"aud": []string{audience}, "exp": ends.Unix()})
	must.OK(k.t, err)
	made, err := signer.Sign(claims)
	must.OK(k.t, err)
	token, err := made.CompactSerialize()
	must.OK(k.t, err)
	return token
}

// Callers with a token need no certificate. The token identifies them, at the gateway and at the shard.
func TestTokenIdentifiesCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const audience = "sheaf/prod/quotes"
		g := startGranted(t, "a", "b")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		file := filepath.Join(t.TempDir(), "token")
		write := func(token string) {
			t.Helper()
			next := file + ".next"
			must.OK(t, os.WriteFile(next, []byte(token+"\n"), 0o600))
			must.OK(t, os.Rename(next, file))
		}
		creds, err := client.TLS(client.TLSFiles{CA: g.CallerFiles().CA})
		must.OK(t, err)
		as := func(address string) *grpc.ClientConn {
			return g.dial(address, creds, grpc.WithPerRPCCredentials(client.Token(file)))
		}
		issuer := newTokens(t, "https://kubernetes.default.svc")
		in, later := audience, time.Now().Add(time.Hour)
		write(issuer.issue("loader", in, later))
		// Without issuers, a connection without a certificate is refused.
		for _, address := range g.servers {
			if _, err := recordv1.NewAccessServiceClient(as(address)).
				WhoAmI(ctx, &recordv1.WhoAmIRequest{}); status.Code(err) != codes.Unavailable {
				t.Errorf("a token is taken by a store without issuers: %v", err)
			}
		}
		grant := access.Grant{
			Name: "loaders", Subjects: []access.Subject{{Kind: access.ServiceAccount, Namespace: "prod", Name: "loader"}},
			Verbs: []access.Verb{access.Get, access.Put, access.Watch}, Groups: access.Groups{Names: []string{"a"}},
		}
		g.set(access.Table{Audience: audience, Issuers: []access.Issuer{issuer.issuer()}, Grants: []access.Grant{grant}})
		conns := map[string]*grpc.ClientConn{}
		for at, address := range g.servers {
			conns[at] = as(address)
			who, err := recordv1.NewAccessServiceClient(conns[at]).WhoAmI(ctx, &recordv1.WhoAmIRequest{})
			if err != nil || who.GetCaller() != "serviceaccount/prod/loader" || who.GetTokenExpiresUnixS() != later.Unix() {
				t.Errorf("at the %s: %v, %v", at, who, err)
			}
			for group, want := range map[string]bool{"a": true, "b": false, "": false} {
				may, err := recordv1.NewAccessServiceClient(conns[at]).CanI(ctx, &recordv1.CanIRequest{Verb: "put", Group: group})
				if err != nil || may.GetAllowed() != want || want == (may.GetReason() != "") {
					t.Errorf("at the %s, put in %q: %v, %v", at, group, may, err)
				}
			}
			nobody := g.dial(address, creds)
			if _, err := recordv1.NewAccessServiceClient(nobody).WhoAmI(ctx,
				&recordv1.WhoAmIRequest{}); status.Code(err) != codes.Unauthenticated {
				t.Errorf("at the %s, without a token: %v", at, err)
			}
			both := g.dial(address, g.as(identity.Client, "c"), grpc.WithPerRPCCredentials(client.Token(file)))
			if _, err := recordv1.NewAccessServiceClient(both).WhoAmI(ctx,
				&recordv1.WhoAmIRequest{}); status.Code(err) != codes.Unauthenticated {
				t.Errorf("at the %s, with a certificate and a token: %v", at, err)
			}
		}
		get := func(at, group string) codes.Code {
			_, err := recordv1.NewRecordServiceClient(conns[at]).Get(ctx,
				&recordv1.GetRequest{Key: &recordv1.RecordKey{Id: 1, Group: group}})
			return status.Code(err)
		}
		for at := range conns {
			for what, tt := range map[string]struct {
				token string
				group string
				want  codes.Code
			}{
				"the right one":         {issuer.issue("loader", in, later), "a", codes.OK},
				"another group":         {issuer.issue("loader", in, later), "b", codes.PermissionDenied},
				"another account":       {issuer.issue("reader", in, later), "a", codes.PermissionDenied},
				"another audience":      {issuer.issue("loader", "sheaf/prod/other", later), "a", codes.Unauthenticated},
				"one that has ended":    {issuer.issue("loader", in, time.Now().Add(-time.Minute)), "a", codes.Unauthenticated},
				"one of another issuer": {newTokens(t, issuer.url).issue("loader", in, later), "a", codes.Unauthenticated},
			} {
				write(tt.token)
				if got := get(at, tt.group); got != tt.want {
					t.Errorf("at the %s, %s: %s", at, what, got)
				}
			}
		}
		write(newTokens(t, issuer.url).issue("loader", in, later))
		c, err := client.Dial(ctx, client.Config{Addresses: []string{g.Addr()}, Credentials: creds,
			CallCredentials: client.Token(file), Dial: g.cfg.seams.dial})
		if err == nil {
			t.Error("a token of another issuer is taken")
			_ = c.Close()
		}
		// A stream ends when its token expires.
		write(issuer.issue("loader", in, time.Now().Add(2*time.Second)))
		for at := range conns {
			stream, err := recordv1.NewRecordServiceClient(conns[at]).Watch(ctx, &recordv1.WatchRequest{Group: "a"})
			for err == nil {
				_, err = stream.Recv()
			}
			if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "ended") &&
				!strings.Contains(err.Error(), "expired") {
				t.Errorf("at the %s: %v", at, err)
			}
		}
		write(issuer.issue("loader", in, later))
		for _, direct := range []bool{false, true} {
			c, err := client.Dial(ctx, client.Config{Addresses: []string{g.Addr()}, Direct: direct, Credentials: creds,
				CallCredentials: client.Token(file), Dial: g.cfg.seams.dial})
			must.OK(t, err)
			if _, err := c.Put(ctx, client.Key{ID: 5, Group: "a"}, []byte("x"), nil); err != nil {
				t.Error(err)
			}
			_, err = c.Put(ctx, client.Key{ID: 5, Group: "b"}, []byte("x"), nil)
			if !errors.Is(err, client.ErrPermissionDenied) {
				t.Error(err)
			}
			_ = c.Close()
		}
		plain, err := client.New(client.Config{Addresses: []string{g.Addr()}, CallCredentials: client.Token(file),
			Dial: g.cfg.seams.dial})
		if err == nil {
			t.Error("a token goes over plaintext")
			_ = plain.Close()
		}
	})
}

// The gateway and the shard accept a value from an earlier answer only from the caller who received it, and only
// unchanged.
func TestCursorsAreBoundToTheirCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGranted(t, "a", "b")
		g.set(access.Table{Grants: []access.Grant{
			toCertificate("c", access.Groups{All: true}, access.Scan, access.Watch, access.Put, access.Get),
			toCertificate("d", access.Groups{All: true}, access.Scan, access.Watch, access.Get),
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		as := func(at, name string) recordv1.RecordServiceClient {
			return recordv1.NewRecordServiceClient(g.dial(g.servers[at], g.as(identity.Client, name)))
		}
		for id := range int64(8) {
			if _, err := as("gateway", "c").Put(ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 10 + id, Group: "a"},
				Data: make([]byte, 1<<20)}); err != nil {
				t.Fatal(err)
			}
		}
		watch := func(at, name string, cursor []byte) ([]byte, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := as(at, name).Watch(ctx, &recordv1.WatchRequest{Group: "a", Cursor: cursor})
			if err != nil {
				return nil, err
			}
			out, err := stream.Recv()
			return out.GetCursor(), err
		}
		// scan returns the cursor of the first message. If all is true, it returns the number of records instead.
		scan := func(at, name string, in *recordv1.ScanRequest, all bool) (cursor []byte, records int, err error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := as(at, name).Scan(ctx, in)
			for err == nil {
				var out *recordv1.ScanResponse
				if out, err = stream.Recv(); err == nil {
					cursor = out.GetCursor()
					if records += len(out.GetRecords()); !all {
						return cursor, records, nil
					}
				}
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return cursor, records, err
		}
		// page returns the token for the page that follows one version of record 1 in a group.
		page := func(at, name, group, token string) (next string, versions int, err error) {
			out, err := as(at, name).ListVersions(ctx, &recordv1.ListVersionsRequest{Key: &recordv1.RecordKey{Id: 1,
				Group: group}, PageSize: 1, PageToken: token})
			return out.GetNextPageToken(), len(out.GetVersions()), err
		}
		// signedText returns a token of ListVersions with changed bytes.
		signedText := func(token string, change func([]byte) []byte) string {
			value, err := base64.RawURLEncoding.DecodeString(token)
			must.OK(t, err)
			return base64.RawURLEncoding.EncodeToString(change(value))
		}
		forged := func(value []byte) []byte {
			out := bytes.Clone(value)
			out[len(out)-5] ^= 1
			return out
		}
		for _, group := range []string{"a", "b"} {
			for range 2 {
				if _, err := as("gateway", "c").Put(ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 1, Group: group},
					Data: []byte(group)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		const bad, old = codes.InvalidArgument, codes.OutOfRange
		for _, from := range []string{"gateway", "shard"} {
			place, err := watch(from, "c", nil)
			must.OK(t, err)
			inAll, before, err := scan(from, "c", &recordv1.ScanRequest{}, false)
			if err != nil || before == 0 {
				t.Fatal(err)
			}
			inGroup, first, err := scan(from, "c", &recordv1.ScanRequest{Group: "a"}, false)
			if err != nil || first == 0 || first == 9 {
				t.Fatal(first, err)
			}
			plan, err := as(from, "c").PlanScan(ctx, &recordv1.PlanScanRequest{Groups: []string{"a"}})
			if err != nil || len(plan.GetSplits()) == 0 {
				t.Fatal(plan, err)
			}
			split := plan.GetSplits()[0].GetSplit()
			token, n, err := page(from, "c", "a", "")
			if err != nil || n != 1 || token == "" {
				t.Fatal(token, n, err)
			}
			for _, to := range []string{"gateway", "shard"} {
				where := "from " + from + " to " + to
				if next, err := watch(to, "c", place); err != nil || len(next) == 0 {
					t.Errorf("a watch goes on %s: %v", where, err)
				}
				if _, rest, err := scan(to, "c", &recordv1.ScanRequest{Cursor: inGroup}, true); err != nil || first+rest != 9 {
					t.Errorf("a scan goes on %s: %d and %d records, %v", where, first, rest, err)
				}
				if _, rest, err := scan(to, "c", &recordv1.ScanRequest{Cursor: inAll}, true); err != nil || before+rest != 10 {
					t.Errorf("a scan of all goes on %s: %d and %d records, %v", where, before, rest, err)
				}
				if _, n, err := scan(to, "c", &recordv1.ScanRequest{Split: split}, true); err != nil || n == 0 {
					t.Errorf("a split is read %s: %d records, %v", where, n, err)
				}
				if next, n, err := page(to, "c", "a", token); err != nil || n != 1 || next == "" {
					t.Errorf("versions go on %s: %d, %v", where, n, err)
				}
				if _, _, err := page(to, "c", "b", token); status.Code(err) != bad {
					t.Errorf("a token of a page in another group is taken %s: %v", where, err)
				}
				if _, _, err := page(to, "c", "a", "*"+token[1:]); status.Code(err) != bad {
					t.Errorf("what is no base64 is taken %s: %v", where, err)
				}
				if _, _, err := page(to, "c", "a", cursor.PageToken(1, 2)); status.Code(err) != old {
					t.Errorf("a token of a page that is not signed is taken %s: %v", where, err)
				}
				for what, tt := range map[string]struct {
					name  string
					bytes func([]byte) []byte
					want  codes.Code
				}{
					"another's": {"d", bytes.Clone, bad}, "changed": {"c", forged, bad}, "cut": {"c", func(b []byte) []byte {
						return b[:19]
					}, bad},
					"not signed": {"c", func(b []byte) []byte { return b[33:] }, old},
				} {
					if what != "not signed" {
						if _, _, err := page(to, tt.name, "a", signedText(token, tt.bytes)); status.Code(err) != tt.want {
							t.Errorf("a token of a page %s, %s: %v", where, what, err)
						}
					}
					if _, err := watch(to, tt.name, tt.bytes(place)); status.Code(err) != tt.want {
						t.Errorf("a place %s, %s: %v", where, what, err)
					}
					if _, _, err := scan(to, tt.name, &recordv1.ScanRequest{Cursor: tt.bytes(inGroup)},
						true); status.Code(err) != tt.want {
						t.Errorf("a cursor %s, %s: %v", where, what, err)
					}
					if _, _, err := scan(to, tt.name, &recordv1.ScanRequest{Split: tt.bytes(split)},
						true); status.Code(err) != tt.want {
						t.Errorf("a split %s, %s: %v", where, what, err)
					}
				}
			}
		}
	})
}
