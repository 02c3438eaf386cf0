package dev

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/batchv1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

// Every call that writes leaves one line for each group and outcome, with the ids of the records, in the audit logs of
// the gateway and of the shard. The line contains neither data nor versions.
func TestEachWriteIsInTheAuditLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit")
		audit, err := guard.OpenAudit(guard.AuditConfig{Path: path, Server: "s", Writes: true})
		must.OK(t, err)
		g := startSeamed(t, seams{audit: audit}, "a", "b")
		g.set(access.Table{Grants: []access.Grant{toCertificate("c", access.Groups{Names: []string{"a"}}, access.Put,
			access.Delete)}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		const data, manyIDs = "whatIsStored", 150
		key := func(id int64) *recordv1.RecordKey { return &recordv1.RecordKey{Id: id, Group: "a"} }
		absent := &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfAbsent{IfAbsent: true}}
		calls := map[string]func(cc *grpc.ClientConn) error{
			recordv1.RecordService_Put_FullMethodName: func(cc *grpc.ClientConn) error {
				_, err := recordv1.NewRecordServiceClient(cc).Put(ctx, &recordv1.PutRequest{Key: key(10), Data: []byte(data)})
				_, _ = recordv1.NewRecordServiceClient(cc).Put(ctx, &recordv1.PutRequest{Key: key(1), Data: []byte(data),
					Condition: absent})
				return err
			},
			recordv1.RecordService_Delete_FullMethodName: func(cc *grpc.ClientConn) error {
				_, err := recordv1.NewRecordServiceClient(cc).Delete(ctx, &recordv1.DeleteRequest{Key: key(11)})
				return err
			},
			recordv1.RecordService_Upload_FullMethodName: func(cc *grpc.ClientConn) error {
				up, err := recordv1.NewRecordServiceClient(cc).Upload(ctx)
				if err == nil {
					err = up.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(
						12)}}})
				}
				if err == nil {
					err = up.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: []byte(data)}})
				}
				if err != nil {
					return err
				}
				_, err = up.CloseAndRecv()
				return err
			},
			recordv1.RecordService_BatchPut_FullMethodName: func(cc *grpc.ClientConn) error {
				puts := []*recordv1.PutRequest{{Key: &recordv1.RecordKey{Id: 77, Group: "b"}, Data: []byte(data)},
					{Key: key(1), Data: []byte(data), Condition: absent}}
				for id := range int64(manyIDs) {
					puts = append(puts, &recordv1.PutRequest{Key: key(1000 + id), Data: []byte(data)})
				}
				batch, err := recordv1.NewRecordServiceClient(cc).BatchPut(ctx)
				if err == nil {
					err = batch.Send(&recordv1.BatchPutRequest{Puts: puts})
				}
				if err != nil {
					return err
				}
				_, err = batch.Recv()
				_ = batch.CloseSend()
				_, _ = batch.Recv() // waits for the end of the stream
				return err
			},
			"/arrow.flight.protocol.FlightService/DoPut": func(cc *grpc.ClientConn) error {
				return firstFlightPut(ctx, cc, &flight.FlightDescriptor{Type: flight.FlightDescriptor_CMD,
					Cmd: []byte(`{"put": {"group": "a"}}`)})
			},
		}
		var hundred []string
		for id := range 100 {
			hundred = append(hundred, fmt.Sprint(1000+id))
		}
		type line struct {
			method, verb, group, ids, code string
			records                        int
		}
		name := func(method string) string { return method[strings.LastIndex(method, "/")+1:] }
		ok, exists := codes.OK.String(), codes.AlreadyExists.String()
		want := []line{
			{"Put", "put", "a", "10", ok, 1},
			{"Put", "put", "a", "1", exists, 1},
			{"Delete", "delete", "a", "11", ok, 1},
			{"Upload", "put", "a", "12", ok, 1},
			{"BatchPut", "put", "a", "1", exists, 1},
			{"BatchPut", "put", "a", strings.Join(hundred, " "), ok, manyIDs},
			{"DoPut", "put", "a", "1", ok, 1},
		}
		for _, method := range ownMethods() {
			full := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
			if verb := access.RuleOf(full).Verb; verb != access.Put && verb != access.Delete {
				continue
			}
			if calls[full] == nil {
				t.Errorf("%s: make the call in this test", full)
				continue
			}
			for at, address := range g.servers {
				if err := calls[full](g.dial(address, g.as(identity.Client, "c"))); err != nil {
					t.Errorf("%s at the %s: %v", full, at, err)
				}
			}
		}
		// The log line for a call is written before the answer to the call is sent.
		must.OK(t, audit.Close())
		text, err := os.ReadFile(path)
		must.OK(t, err)
		got, refused := map[string]map[line]int{}, 0
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			var e guard.Event
			must.OK(t, json.Unmarshal(lines.Bytes(), &e))
			if e.Kind == "refusal" && e.Group == "b" && slices.Equal(e.IDs, []string{"77"}) {
				refused++
			}
			if e.Kind != "write" || e.Caller != "client/c" {
				continue
			}
			if got[e.Via] == nil {
				got[e.Via] = map[line]int{}
			}
			got[e.Via][line{name(e.Method), e.Verb, e.Group, strings.Join(e.IDs, " "), e.Code, e.Records}]++
		}
		// The gateway logs each request of a caller. A shard that a caller calls directly does the same, and a shard behind
		// a gateway logs the requests that it receives from the gateway, which sends a DoPut on as a BatchPut.
		for via, times := range map[string]int{"": 2, "gateway": 1} {
			for _, w := range want {
				if via != "" && w.method == "DoPut" {
					w.method = "BatchPut"
				}
				if got[via][w] != times {
					t.Errorf("via %q there are %d lines instead of %d: %+v", via, got[via][w], times, w)
				}
			}
			if len(got[via]) != len(want) {
				t.Errorf("via %q there are other lines: %+v", via, got[via])
			}
		}
		if refused != 2 {
			t.Errorf("%d lines tell of the put that was refused, instead of 2", refused)
		}
		if bytes.Contains(text, []byte(data)) {
			t.Error("data are in the audit log")
		}
	})
}

// Whoever opens, renews or closes a view leaves a line with its groups and the outcome, also where no writes are
// logged, by gRPC and by Arrow Flight. A refusal has its own kind of line, and a list none.
func TestViewsAreInTheAuditLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit")
		audit, err := guard.OpenAudit(guard.AuditConfig{Path: path, Server: "s"})
		must.OK(t, err)
		g := startSeamed(t, seams{audit: audit}, "a", "b")
		g.set(access.Table{Grants: []access.Grant{toCertificate("c", access.Groups{All: true}, access.Scan),
			toCertificate("d", access.Groups{Names: []string{"a"}}, access.Scan)}})
		conn := g.dial(g.servers["gateway"], g.as(identity.Client, "c"))
		views := batchv1.NewViewServiceClient(conn)
		out, err := views.OpenView(t.Context(), &batchv1.OpenViewRequest{})
		must.OK(t, err)
		id := out.GetView().GetId()
		_, err = views.ListViews(t.Context(), &batchv1.ListViewsRequest{})
		must.OK(t, err)
		_, err = views.RenewView(t.Context(), &batchv1.RenewViewRequest{View: id})
		must.OK(t, err)
		denied := batchv1.NewViewServiceClient(g.dial(g.servers["gateway"], g.as(identity.Client, "d")))
		if _, err := denied.CloseView(t.Context(), &batchv1.CloseViewRequest{View: id}); err == nil {
			t.Error("a caller without the right has closed a view")
		}
		results, err := act(t.Context(), conn, "close-view", fmt.Sprintf(`{"view": %q}`, id))
		if err != nil || len(results) != 1 {
			t.Errorf("close-view: %q, %v", results, err)
		}
		must.OK(t, audit.Close())
		text, err := os.ReadFile(path)
		must.OK(t, err)
		var got []string
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			var e guard.Event
			must.OK(t, json.Unmarshal(lines.Bytes(), &e))
			name := e.Method[strings.LastIndex(e.Method, "/")+1:]
			switch {
			case e.Kind == "view" && e.View == id:
				got = append(got, fmt.Sprintln(e.Caller, name, e.Verb, e.Action, e.Groups, e.Code))
			case e.Kind == "refusal" && e.Caller == "client/d":
				got = append(got, fmt.Sprintln(e.Caller, name, e.Verb, e.Group))
			case e.Kind == "view":
				t.Errorf("another line: %+v", e)
			}
		}
		want := []string{"client/c OpenView scan open [a b] OK\n", "client/c RenewView scan renew [a b] OK\n",
			"client/d CloseView scan b\n", "client/c DoAction scan close [a b] OK\n"}
		if !slices.Equal(got, want) {
			t.Errorf("the log has %q instead of %q", got, want)
		}
	})
}

// act returns the bodies of the results of an action of Arrow Flight.
func act(ctx context.Context, cc *grpc.ClientConn, action, body string) (results []string, err error) {
	stream, err := flight.NewFlightServiceClient(cc).DoAction(ctx, &flight.Action{Type: action, Body: []byte(body)})
	for err == nil {
		var result *flight.Result
		if result, err = stream.Recv(); err == nil {
			results = append(results, string(result.GetBody()))
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return results, err
}
