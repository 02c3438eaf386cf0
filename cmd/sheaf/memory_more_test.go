package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// metric returns the sum of a metric that a process reports. It fails the test if the process reports no such metric.
func (p *process) metric(t *testing.T, name string) (sum float64) {
	t.Helper()
	answer, err := http.Get("http://" + p.http + "/metrics")
	must(t, err)
	defer func() { _ = answer.Body.Close() }()
	found := false
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, name+" ") || strings.HasPrefix(line, name+"{") {
			var value float64
			_, err := fmt.Sscanf(line[strings.LastIndexByte(line, ' ')+1:], "%g", &value)
			must(t, err)
			sum, found = sum+value, true
		}
	}
	if !found {
		t.Fatalf("%s does not report %s", p.http, name)
	}
	return sum
}

// HTTP callers are anonymous, so the server must not trust anyone who can reach the port. Connections that never
// complete their headers, or never read their answers, can take only a limited amount of memory, and a probe is still
// answered.
func TestHTTPConnectionsStayWithinACgroup(t *testing.T) {
	soaktest.Only(t, "proc", "it opens a thousand connections, and makes cgroups")
	r, gateway, _ := startGranted(t, 256<<20)
	const connections, boundOpen = 500, 256
	unfinished := "GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 15<<10)
	unread := "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
	for where, m := range map[string]*member{"gateway": gateway, "shard": r.members[2]} {
		for what, request := range map[string]string{"unfinished headers": unfinished,
			"unread answers": strings.Repeat(unread, 50)} {
			t.Run(what+" at a "+where, func(t *testing.T) {
				before, closed := m.process.resident(t), m.process.metric(t, "sheaf_http_closed_connections_total")
				for range connections {
					conn, err := net.Dial("tcp", m.process.http)
					must(t, err)
					t.Cleanup(func() { _ = conn.Close() })
					must(t, conn.SetWriteDeadline(time.Now().Add(time.Second)))
					_, _ = io.WriteString(conn, request) // the server may read only a part of the request, or close the connection
				}
				eventually(t, func() bool { return m.process.metric(t, "sheaf_http_closed_connections_total") > closed })
				open, grown := m.process.metric(t, "sheaf_http_connections"), m.process.resident(t)-before
				t.Logf("%d MiB more for %d connections, %.0f of them open", grown>>20, connections, open)
				soaktest.Report(t, "MiB more", grown>>20)
				if open > boundOpen || grown > 160<<20 {
					t.Errorf("%.0f connections are open, with %d MiB", open, grown>>20)
				}
				if kills := m.cgroup.kills(); kills > 0 {
					t.Fatalf("the kernel has killed %d processes", kills)
				}
				m.process.waitReady(t)
			})
		}
	}
}

// A snapshot keeps, in memory, the locations of all versions that were superseded after it was taken. A caller who
// may scan can open many snapshots, but the memory that they take is limited. A caller who may not scan cannot open
// any.
func TestSnapshotsStayWithinACgroup(t *testing.T) {
	soaktest.Only(t, "proc", "it opens a thousand snapshots, and makes cgroups")
	r, gateway, loader := startGranted(t, 512<<20)
	c, err := r.dial(gateway.process.server, loader.folder, false, false)
	must(t, err)
	defer func() { _ = c.Close() }()
	const records = 2000
	items := make([]client.PutItem, records)
	put := func() {
		for i := range items {
			items[i] = client.PutItem{Key: client.Key{ID: int64(i)}, Data: []byte("snapshot")}
		}
		for _, outcome := range c.BatchPut(t.Context(), items) {
			must(t, outcome.Err)
		}
	}
	eventually(t, func() bool {
		_, err := c.Put(t.Context(), client.Key{ID: 1}, []byte("x"), nil)
		return err == nil
	})
	put()
	shards := []*member{r.members[2], r.members[3]}
	sum := func(name string) (sum float64) {
		for _, m := range shards {
			sum += m.process.metric(t, name)
		}
		return sum
	}
	callers := r.strangerConfigs()
	for name, known := range callers {
		conn, err := grpc.NewClient(gateway.process.server, grpc.WithTransportCredentials(credentials.NewTLS(known)))
		must(t, err)
		for range 100 {
			_, err := recordv1.NewRecordServiceClient(conn).PlanScan(t.Context(), &recordv1.PlanScanRequest{})
			if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unauthenticated {
				t.Fatalf("a scan of a caller %s: %v", name, err)
			}
		}
		must(t, conn.Close())
	}
	if open := sum("sheaf_shard_snapshots"); open != 0 {
		t.Errorf("callers who may not scan have opened %.0f snapshots", open)
	}
	before := map[*member]int64{}
	for _, m := range shards {
		before[m] = m.process.resident(t)
	}
	conn, err := grpc.NewClient(gateway.process.server, grpc.WithTransportCredentials(credentials.NewTLS(r.tlsOf(loader))))
	must(t, err)
	defer func() { _ = conn.Close() }()
	for n := range 1000 {
		_, err := recordv1.NewRecordServiceClient(conn).PlanScan(t.Context(), &recordv1.PlanScanRequest{})
		must(t, err)
		if n%10 == 0 {
			put()
		}
	}
	const groups, snapshotsMax, placesMax = 2, 256, 4 << 20
	if most := sum("sheaf_shard_snapshots"); most < snapshotsMax || most > groups*snapshotsMax {
		t.Errorf("%.0f snapshots are open, at most %d of a group", most, snapshotsMax)
	}
	places := sum("sheaf_shard_snapshot_places")
	if places == 0 || places > groups*placesMax {
		t.Errorf("snapshots hold %.0f places", places)
	}
	for _, m := range shards {
		grown := m.process.resident(t) - before[m]
		t.Logf("shard %s: %d MiB more, %.0f places in all", m.process.server, grown>>20, places)
		soaktest.Report(t, "MiB more", grown>>20)
		if grown > 256<<20 {
			t.Errorf("%d MiB more", grown>>20)
		}
		if kills := m.cgroup.kills(); kills > 0 {
			t.Fatalf("the kernel has killed %d processes", kills)
		}
	}
	if _, err := c.Get(t.Context(), client.Key{ID: 1}, nil); err != nil {
		t.Errorf("a call of somebody else: %v", err)
	}
}
