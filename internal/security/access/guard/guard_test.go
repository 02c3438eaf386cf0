package guard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/identity"
)

var store = identity.Store{Domain: "cluster.local", Namespace: "quotes",
	UID: uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")}

// guardedServer is a gRPC server with a Guard. In place of a certificate, a header identifies the caller.
type guardedServer struct {
	recordv1.UnimplementedRecordServiceServer
	recordv1.UnimplementedAdminServiceServer
	*Guard
	take chan []byte
	// required says whether callers who need grants must wait while there is no table.
	required atomic.Bool
	access   recordv1.AccessServiceClient
	record   recordv1.RecordServiceClient
	admin    recordv1.AdminServiceClient
	log      *lines
	conn     *grpc.ClientConn
}

// Get succeeds if the caller has permission for the group.
func (s *guardedServer) Get(ctx context.Context, in *recordv1.GetRequest) (*recordv1.GetResponse, error) {
	return &recordv1.GetResponse{}, access.May(ctx, access.Get, in.GetKey().GetGroup())
}

// Scan succeeds if the caller has permission for the group.
func (s *guardedServer) Scan(in *recordv1.ScanRequest, stream recordv1.RecordService_ScanServer) error {
	return access.May(stream.Context(), access.Scan, in.GetGroup())
}

// Put succeeds if the caller has permission for the record.
func (s *guardedServer) Put(ctx context.Context, in *recordv1.PutRequest) (*recordv1.PutResponse, error) {
	if err := access.MayRecord(ctx, access.Put, in.GetKey().GetGroup(), in.GetKey().GetId()); err != nil {
		return nil, err
	}
	if len(in.GetData()) == 0 {
		return nil, status.Error(codes.FailedPrecondition, "secret")
	}
	return &recordv1.PutResponse{}, nil
}

// ListShards returns an empty response.
func (*guardedServer) ListShards(context.Context, *recordv1.ListShardsRequest) (*recordv1.ListShardsResponse, error) {
	return &recordv1.ListShardsResponse{}, nil
}

// AcceptLoss returns an empty response.
func (*guardedServer) AcceptLoss(context.Context, *recordv1.AcceptLossRequest) (*recordv1.AcceptLossResponse, error) {
	return &recordv1.AcceptLossResponse{}, nil
}

// lines is an in-memory log.
type lines struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}

func init() { tablePatience, auditPatience = time.Minute, time.Minute }

func serve(t *testing.T, audit *Audit) *guardedServer {
	t.Helper()
	return serveWith(t, audit, func(*Config) {})
}

// serveWith is like serve, but applies change to the configuration first.
func serveWith(t *testing.T, audit *Audit, change func(*Config)) *guardedServer {
	t.Helper()
	s := &guardedServer{take: make(chan []byte), log: &lines{}}
	cfg := Config{
		Store: store, Audit: audit, Logger: slog.New(slog.NewTextHandler(s.log, nil)),
		Who: func(ctx context.Context) (identity.Identity, bool) {
			who := metadata.ValueFromIncomingContext(ctx, "who")
			if len(who) == 0 {
				return identity.Identity{}, false
			}
			role, name, _ := strings.Cut(who[0], "/")
			of := store
			if role == "other" {
				role, of.Namespace = "client", "another"
			}
			return identity.Identity{Store: of, Role: identity.Role(role), Name: name}, true
		},
		Required: s.required.Load,
		Key:      func(context.Context) ([]byte, error) { return make([]byte, access.SigningKeyBytes), nil },
		Follow: func(ctx context.Context, take func([]byte)) {
			for {
				select {
				case text := <-s.take:
					take(text)
				case <-ctx.Done():
					return
				}
			}
		},
	}
	change(&cfg)
	s.Guard = New(cfg)
	t.Cleanup(s.Close)
	s.conn = s.listen(t, s.ServerOptions()...)
	s.access, s.record, s.admin = recordv1.NewAccessServiceClient(s.conn), recordv1.NewRecordServiceClient(s.conn),
		recordv1.NewAdminServiceClient(s.conn)
	return s
}

// listen starts a server with the given options, and returns a client connection to it.
func (s *guardedServer) listen(t *testing.T, options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	server := grpc.NewServer(options...)
	recordv1.RegisterRecordServiceServer(server, s)
	recordv1.RegisterAdminServiceServer(server, s)
	recordv1.RegisterAccessServiceServer(server, access.Service{})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	cc, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

func as(t *testing.T, who string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, "who", who)
}

// get reads a record from a group, and returns the status code of the response.
func (s *guardedServer) get(t *testing.T, who, group string) codes.Code {
	t.Helper()
	_, err := s.record.Get(as(t, who), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: group}})
	return status.Code(err)
}

const tableOf = `{"version":1,"grants":[
 {"name":"readers","subjects":[{"kind":"Certificate","name":"c"}],"verbs":["get","put"],"groups":{"names":["a"]}},
 {"name":"ops","subjects":[{"kind":"Certificate","name":"ops"}],
  "verbs":["admin-read","admin-write"],"groups":{"all":true}}]}`

// setTable passes a table to the Guard, and waits until the Guard uses it.
func (s *guardedServer) setTable(text []byte) {
	s.take <- text
	// The Guard receives the second table only after it has begun to use the first one, because the channel has no
	// buffer.
	s.take <- text
}

func TestAStoreWithoutATableIsOpenToItsCallers(t *testing.T) {
	s := serve(t, nil)
	s.setTable(nil)
	for who, want := range map[string]codes.Code{"client/c": codes.OK, "admin/a": codes.OK, "gateway": codes.OK} {
		if got := s.get(t, who, "a"); got != want {
			t.Errorf("%s: %s", who, got)
		}
	}
	if _, err := s.admin.ListShards(as(t, "client/c"), &recordv1.ListShardsRequest{}); status.Code(
		err) != codes.PermissionDenied {
		t.Error(err)
	}
	if may, err := s.access.CanI(as(t, "client/c"), &recordv1.CanIRequest{Verb: "admin-read"}); err != nil ||
		may.GetAllowed() {
		t.Error(may, err)
	}
}

// TestOnlyPlaintextIsEverybody checks that a plaintext call gets access.Everybody in its context, and that a call
// without any Call in its context may do nothing.
func TestOnlyPlaintextIsEverybody(t *testing.T) {
	plain := serveWith(t, nil, func(cfg *Config) {
		cfg.Open = func(ctx context.Context) bool {
			return len(metadata.ValueFromIncomingContext(ctx, "who")) == 0
		}
	})
	plain.setTable([]byte(tableOf))
	if _, err := plain.record.Get(t.Context(), &recordv1.GetRequest{}); err != nil {
		t.Errorf("over plaintext: %v", err)
	}
	if got := plain.get(t, "client/c", "b"); got != codes.PermissionDenied {
		t.Errorf("over TLS: %s", got)
	}
	s := &guardedServer{}
	for name, options := range map[string][]grpc.ServerOption{"": nil, "plaintext": Plaintext()} {
		conn := s.listen(t, options...)
		_, unary := recordv1.NewRecordServiceClient(conn).Get(t.Context(), &recordv1.GetRequest{})
		stream, err := recordv1.NewRecordServiceClient(conn).Scan(t.Context(), &recordv1.ScanRequest{})
		if err != nil {
			t.Fatal(err)
		}
		_, streamed := stream.Recv()
		if want := name != ""; want != (unary == nil) || want != errors.Is(streamed, io.EOF) {
			t.Errorf("a server with the options of %q: %v, %v", name, unary, streamed)
		}
	}
}

// TestGatewayCallWithoutCallerIsRefused checks that a call from a gateway is refused if it has no header that names
// the caller. It must not be mistaken for a call by the gateway itself.
func TestGatewayCallWithoutCallerIsRefused(t *testing.T) {
	s := serveWith(t, nil, func(cfg *Config) { cfg.Forwarded = true })
	s.setTable([]byte(tableOf))
	for _, c := range []struct {
		name    string
		headers []string
		want    codes.Code
	}{
		{"nobody", nil, codes.Unauthenticated},
		{"a caller", []string{callerHeader, "client/c"}, codes.OK},
		{"a caller without a grant", []string{callerHeader, "client/d"}, codes.PermissionDenied},
		{"a process", []string{unnamedHeader, unnamedProcess}, codes.OK},
		{"everybody", []string{unnamedHeader, unnamedEverybody}, codes.OK},
		{"something else", []string{unnamedHeader, "x"}, codes.Unauthenticated},
		{"two", []string{unnamedHeader, unnamedProcess, unnamedHeader, unnamedProcess}, codes.Unauthenticated},
		{"a caller and a process", []string{callerHeader, "client/d", unnamedHeader, unnamedProcess}, codes.Unauthenticated},
	} {
		_, err := s.record.Get(metadata.AppendToOutgoingContext(as(t, "gateway"), c.headers...),
			&recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "a"}})
		if status.Code(err) != c.want {
			t.Errorf("a gateway that calls for %s: %v", c.name, err)
		}
	}
	if _, err := s.record.Get(metadata.AppendToOutgoingContext(as(t, "client/d"), unnamedHeader, unnamedProcess),
		&recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "a"}}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a caller that says it is a process: %v", err)
	}
	// The headers that a gateway sends depend on the call in its context.
	process, err := access.ParseCaller("operator")
	if err != nil {
		t.Fatal(err)
	}
	client, err := access.ParseCaller("client/c")
	if err != nil {
		t.Fatal(err)
	}
	for want, own := range map[string]access.Call{
		"": nil, unnamedHeader + " " + unnamedEverybody: access.Everybody,
		unnamedHeader + " " + unnamedProcess: &call{caller: process}, callerHeader + " client/c": &call{caller: client},
	} {
		ctx := t.Context()
		if own != nil {
			ctx = access.WithCall(ctx, own)
		}
		added, _ := metadata.FromOutgoingContext(forward(ctx))
		var got []string
		for _, header := range []string{callerHeader, unnamedHeader} {
			for _, value := range added[header] {
				got = append(got, header+" "+value)
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("for %v it says %q, and must say %q", own, got, want)
		}
	}
}

// TestACallIsRefusedByItsHeaders checks that the server refuses a call as soon as the call's headers have arrived. In
// this test the message never arrives. If the server waited for messages before it refused calls, it would have to
// keep those messages in memory.
func TestACallIsRefusedByItsHeaders(t *testing.T) {
	s := serve(t, nil)
	s.setTable([]byte(tableOf))
	begin := func(ctx context.Context, method string) error {
		stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		// The client gets the refusal, although it has not sent a message.
		return stream.RecvMsg(&recordv1.GetResponse{})
	}
	const get, list = recordv1.RecordService_Get_FullMethodName, recordv1.AdminService_ListShards_FullMethodName
	minute, over := context.WithTimeout(t.Context(), time.Minute)
	defer over()
	for _, c := range []struct {
		name, method string
		ctx          context.Context
		want         codes.Code
	}{
		{"nobody", get, minute, codes.Unauthenticated},
		{"a bad token", get, metadata.AppendToOutgoingContext(minute, "authorization", "Bearer a.b.c"),
			codes.Unauthenticated},
		{"without a grant", get, as(t, "client/stranger"), codes.PermissionDenied},
		{"of another store", get, as(t, "other/c"), codes.PermissionDenied},
		{"no administrator", list, as(t, "client/c"), codes.PermissionDenied},
	} {
		if err := begin(c.ctx, c.method); status.Code(err) != c.want {
			t.Fatalf("%s: %v", c.name, err)
		}
	}
	// gRPC itself would also reject a call to an unknown method, but it would keep the call's headers until its response
	// is written.
	if err := begin(minute, "/sheaf.record.v1.RecordService/Nothing"); !errors.Is(err, errNoMethod) {
		t.Errorf("a method that nobody may call: %v", err)
	}
	// If the caller is permitted, the call waits for its message. When the message has arrived, the Guard decides again.
	ctx, cancel := context.WithTimeout(as(t, "client/c"), 100*time.Millisecond)
	defer cancel()
	if err := begin(ctx, get); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("it is answered without its message: %v", err)
	}
	entered := make(headersRead)
	conn := s.listen(t, append(s.ServerOptions(), grpc.StatsHandler(entered))...)
	stream, err := conn.NewStream(as(t, "client/c"), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, get)
	if err != nil {
		t.Fatal(err)
	}
	<-entered // waits for the first decision, which is made with a table that permits the call
	s.setTable([]byte(strings.Replace(tableOf, `"name":"c"`, `"name":"another"`, 1)))
	if err := stream.SendMsg(&recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "a"}}); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&recordv1.GetResponse{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a grant that was taken while the message came: %v", err)
	}
}

// headersRead receives a value each time that the decision about a call's headers has been made.
type headersRead chan struct{}

func (headersRead) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (h headersRead) HandleRPC(_ context.Context, of stats.RPCStats) {
	if _, ok := of.(*stats.InHeader); ok {
		h <- struct{}{}
	}
}

func (headersRead) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (headersRead) HandleConn(context.Context, stats.ConnStats) {}

// TestStoreWithoutRequiredTableIsClosed checks a store that requires a table but has none. It must admit
// only its own processes and administrators.
func TestStoreWithoutRequiredTableIsClosed(t *testing.T) {
	s := serve(t, nil)
	s.required.Store(true)
	s.setTable(nil)
	for who, want := range map[string]codes.Code{"client/c": codes.Unavailable, "admin/a": codes.OK, "gateway": codes.OK,
		"shard/s": codes.OK} {
		if got := s.get(t, who, "a"); got != want {
			t.Errorf("%s: %s", who, got)
		}
	}
	_, err := s.record.Get(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer a.b.c"),
		&recordv1.GetRequest{})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no table of grants yet") {
		t.Errorf("by a token: %v", err)
	}
	if s.Version() != 0 {
		t.Error(s.Version())
	}
	s.setTable([]byte(tableOf))
	if a, b := s.get(t, "client/c", "a"), s.get(t, "client/c", "b"); a != codes.OK || b != codes.PermissionDenied {
		t.Errorf("with a table: in a %s, in b %s", a, b)
	}
	if s.Version() != 1 {
		t.Error(s.Version())
	}
}

// TestTheLastGoodTableStaysInUse checks that the store does not become open to everybody when its table is deleted or
// replaced by an invalid one.
func TestTheLastGoodTableStaysInUse(t *testing.T) {
	s := serve(t, nil)
	s.setTable([]byte(tableOf))
	check := func() {
		t.Helper()
		if a, b := s.get(t, "client/c", "a"), s.get(t, "client/c", "b"); a != codes.OK || b != codes.PermissionDenied {
			t.Errorf("in a %s, in b %s", a, b)
		}
	}
	check()
	for _, text := range []string{"", "{", `{"version":0}`, strings.Replace(tableOf, "get", "read", 1)} {
		var table []byte
		if text != "" {
			table = []byte(text)
		}
		before := testutil.ToFloat64(s.counts.errors)
		s.setTable(table)
		check()
		if after := testutil.ToFloat64(s.counts.errors); after <= before {
			t.Errorf("%q is not counted", text)
		}
	}
	if log := s.log.String(); !strings.Contains(log, "the last one stays in use") ||
		!strings.Contains(log, `\"read\" is no verb`) {
		t.Error(log)
	}
	s.setTable([]byte(strings.Replace(tableOf, `["a"]`, `["b"]`, 1)))
	if a, b := s.get(t, "client/c", "a"), s.get(t, "client/c", "b"); a != codes.PermissionDenied || b != codes.OK {
		t.Errorf("the next table: in a %s, in b %s", a, b)
	}
}

// TestCallersWaitForTheFirstTable checks that callers who need grants are not admitted before the first table is
// known, and that the store's own processes are.
func TestCallersWaitForTheFirstTable(t *testing.T) {
	s := serve(t, nil)
	if got := s.get(t, "gateway", "a"); got != codes.OK {
		t.Error(got)
	}
	ctx, cancel := context.WithTimeout(as(t, "client/c"), 50*time.Millisecond)
	defer cancel()
	if _, err := s.record.Get(ctx, &recordv1.GetRequest{}); status.Code(err) != codes.Unavailable &&
		status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	answered := make(chan codes.Code, 1)
	go func() { answered <- s.get(t, "client/c", "a") }()
	s.setTable([]byte(tableOf))
	if got := <-answered; got != codes.OK {
		t.Error(got)
	}
	s.setTable([]byte("{")) // an invalid table follows a valid one
	if got := s.get(t, "client/c", "a"); got != codes.OK {
		t.Error(got)
	}
}

// read reads n events from an audit log. If necessary, it waits for them.
func read(t *testing.T, from io.Reader, n int) (events []Event) {
	t.Helper()
	lines := bufio.NewScanner(from)
	for len(events) < n && lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		events = append(events, e)
	}
	return events
}

func TestAuditLogEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	audit, err := OpenAudit(AuditConfig{Path: path, Server: "shard s", Writes: true})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, audit)
	s.setTable([]byte(tableOf))
	put := func(who, group string) {
		_, _ = s.record.Put(as(t, who), &recordv1.PutRequest{Key: &recordv1.RecordKey{Group: group, Id: 5},
			Data: []byte("secret")})
	}
	s.get(t, "client/c", "a")
	s.get(t, "client/c", "a")   // no longer the first use of this grant, so nothing is logged
	s.setTable([]byte(tableOf)) // installing the same table again must not reset the first uses
	s.get(t, "client/c", "a")   // still not a first use
	s.get(t, "client/c", "b")
	put("client/c", "a")
	put("client/c", "b")
	_, _ = s.record.Put(as(t, "client/c"), &recordv1.PutRequest{Key: &recordv1.RecordKey{Group: "a", Id: -1 << 63}})
	s.get(t, "client/stranger", "a")
	_, _ = s.record.Get(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer se.cr.et"),
		&recordv1.GetRequest{})
	_, _ = s.admin.AcceptLoss(as(t, "client/ops"), &recordv1.AcceptLossRequest{Group: "a"})
	// This call is not logged, because the store's processes make such calls all the time.
	_, _ = s.admin.ListShards(as(t, "gateway"), &recordv1.ListShardsRequest{})
	_, _ = s.admin.ListShards(as(t, "admin/ada"), &recordv1.ListShardsRequest{})
	if err := audit.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "secret") || strings.Contains(string(text), "se.cr.et") {
		t.Errorf("data or tokens are told:\n%s", text)
	}
	type short struct{ kind, caller, verb, group, ids, code string }
	want := []short{
		{"first-use", "client/c", "get", "a", "", ""}, {"refusal", "client/c", "get", "b", "", "PermissionDenied"},
		{"first-use", "client/c", "put", "a", "", ""}, {"write", "client/c", "put", "a", "5", "OK"},
		{"refusal", "client/c", "put", "b", "5", "PermissionDenied"},
		{"write", "client/c", "put", "a", "-9223372036854775808", "FailedPrecondition"},
		{"refusal", "client/stranger", "get", "", "", "PermissionDenied"},
		{"refusal", "nobody", "get", "", "", "Unauthenticated"}, {"first-use", "client/ops", "admin-write", "a", "", ""},
		{"admin", "client/ops", "admin-write", "a", "", "OK"}, {"admin", "admin/ada", "admin-read", "", "", "OK"},
	}
	got := read(t, bytes.NewReader(text), 100)
	if len(got) != len(want) {
		t.Fatalf("%d lines instead of %d:\n%s", len(got), len(want), text)
	}
	for i, e := range got {
		if (short{e.Kind, e.Caller, e.Verb, e.Group, strings.Join(e.IDs, " "), e.Code}) != want[i] || e.Server != "shard s" ||
			e.From == "" || e.Method == "" || e.Table != 1 {
			t.Errorf("line %d: %+v, and should be %+v", i, e, want[i])
		}
		if _, err := time.Parse(time.RFC3339, e.Time); err != nil {
			t.Error(err)
		}
		if (e.Kind == "first-use") != (len(e.Grants) == 1) {
			t.Errorf("line %d names the grants %v", i, e.Grants)
		}
	}
	if n := testutil.ToFloat64(audit.written); int(n) != len(want) {
		t.Errorf("%v lines are counted", n)
	}
}

// TestUnreadAuditLogBlocksNoCalls checks that no call blocks if the log is a FIFO that nobody reads. Lines
// are dropped and counted instead.
func TestUnreadAuditLogBlocksNoCalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	audit, err := OpenAudit(AuditConfig{Path: path, Server: "shard s"})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, audit)
	s.setTable([]byte(tableOf))
	refused := 0
	for testutil.ToFloat64(audit.lost) == 0 {
		if got := s.get(t, "client/c", "b"); got != codes.PermissionDenied {
			t.Fatal(got)
		}
		if refused++; refused > 20*auditQueue {
			t.Fatal("no line is lost: is there a reader?")
		}
	}
	if refused < auditQueue {
		t.Errorf("the first line is lost after %d", refused)
	}
	if got := s.get(t, "client/c", "a"); got != codes.OK {
		t.Error(got)
	}
	defer func(before time.Duration) { auditPatience = before }(auditPatience)
	auditPatience = time.Second
	if err := audit.Close(); err == nil {
		t.Error("nobody says that lines are lost")
	}
	if err := audit.Close(); err != nil {
		t.Error(err)
	}
	// When the writer has ended, the lines that were still waiting have been counted as lost.
	<-audit.done
	before := testutil.ToFloat64(audit.lost)
	s.get(t, "client/c", "b") // the log is closed, so this refusal counts as lost
	if testutil.ToFloat64(audit.lost) != before+1 {
		t.Error("a line behind the end is not counted")
	}
}

// failingWriter is a writer that fails like a file on a full disk.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no space") }
func (failingWriter) Close() error              { return nil }

func TestLinesThatCannotBeWrittenAreCounted(t *testing.T) {
	audit := newAudit(AuditConfig{}, failingWriter{})
	audit.note(Event{Kind: "refusal"})
	if err := audit.Close(); err != nil {
		t.Fatal(err)
	}
	if n := testutil.ToFloat64(audit.lost); n != 1 {
		t.Error(n)
	}
	if _, err := OpenAudit(AuditConfig{Path: filepath.Join(t.TempDir(), "none", "audit")}); err == nil {
		t.Error("a folder that is missing")
	}
}
