package main

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// holder is an HTTP/2 client that leaves messages incomplete.
type holder struct {
	*http2.Framer
	conn net.Conn

	mu      sync.Mutex
	changed *sync.Cond
	initial int            // initial window of a stream
	window  int            // window of the connection
	windows map[uint32]int // maps an open stream to the difference between its window and the initial one
	ended   bool           // the server has closed the connection
}

func (h *holder) read() {
	for {
		frame, err := h.ReadFrame()
		h.mu.Lock()
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if v, ok := frame.Value(http2.SettingInitialWindowSize); ok {
				h.initial = int(v)
			}
		case *http2.WindowUpdateFrame:
			if frame.StreamID == 0 {
				h.window += int(frame.Increment)
			} else if _, open := h.windows[frame.StreamID]; open {
				h.windows[frame.StreamID] += int(frame.Increment)
			}
		case *http2.HeadersFrame:
			if frame.StreamEnded() {
				delete(h.windows, frame.StreamID)
			}
		case *http2.RSTStreamFrame:
			delete(h.windows, frame.StreamID)
		}
		h.ended = h.ended || err != nil
		h.changed.Broadcast()
		ended := h.ended
		h.mu.Unlock()
		if ended {
			return
		}
	}
}

// call begins a call of a method, with additional headers. It reports whether the connection is open.
func (h *holder) call(id uint32, method string, more ...[2]string) bool {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range append([][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"}}, more...) {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // a write to memory cannot fail
	}
	h.mu.Lock()
	h.windows[id] = 0
	h.mu.Unlock()
	return h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}) == nil
}

// awaitWindow waits until flow control allows bytes of a stream to be sent. It returns how many bytes may be sent, up
// to the limit most, and deducts them from the windows. It returns 0 if the stream or the connection has ended.
func (h *holder) awaitWindow(id uint32, most int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		more, open := h.windows[id]
		if h.ended || !open {
			return 0
		}
		if n := min(most, h.window, h.initial+more); n > 0 {
			h.window -= n
			h.windows[id] -= n
			return n
		}
		h.changed.Wait()
	}
}

// holdMessages opens several calls of a method on one connection. On each call, it sends a message without its last
// byte, as fast as the server's flow control allows. holdMessages returns the number of bytes sent, once all messages
// are sent or the server has refused the calls. The connection remains open until the test ends.
func holdMessages(t *testing.T, address string, known *tls.Config, method string, calls, bytesOfEach int) (sent int) {
	t.Helper()
	h := connect(t, address, known)
	message := make([]byte, 5+bytesOfEach)
	binary.BigEndian.PutUint32(message[1:], uint32(bytesOfEach))
	for n := range calls {
		id := uint32(2*n + 1)
		if !h.call(id, method) {
			return sent
		}
		for rest := message[:len(message)-1]; len(rest) > 0; {
			part := h.awaitWindow(id, min(len(rest), 16<<10))
			if part == 0 || h.WriteData(id, false, rest[:part]) != nil {
				break
			}
			rest, sent = rest[part:], sent+part
		}
	}
	return sent
}

// connect opens a connection that remains open until the test ends.
func connect(t *testing.T, address string, known *tls.Config) *holder {
	t.Helper()
	conn, err := tls.Dial("tcp", address, known)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	h := &holder{Framer: http2.NewFramer(conn, conn), conn: conn, initial: 65535, window: 65535,
		windows: map[uint32]int{}}
	h.changed = sync.NewCond(&h.mu)
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(t, err)
	must(t, h.WriteSettings())
	go h.read()
	return h
}

// strangerConfigs returns, by name, the TLS configurations of clients that can connect but have no permission to call.
func (r *rotating) strangerConfigs() map[string]*tls.Config {
	r.t.Helper()
	foreign := r.add("foreign", identity.Client, "loader")
	foreign.identity.UID = uuid.New()
	r.install(foreign, r.authority, r.authority)
	ungranted := r.add("ungranted", identity.Client, "nobody")
	callers := map[string]*tls.Config{"without a certificate": {MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	for name, m := range map[string]*member{"of another store": foreign, "without a grant": ungranted} {
		callers[name] = r.tlsOf(m)
	}
	return callers
}

// tlsOf returns the TLS configuration of a client with the certificate of a member.
func (r *rotating) tlsOf(m *member) *tls.Config {
	r.t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(m.folder, certs.CertificateFile),
		filepath.Join(m.folder, certs.KeyFile))
	must(r.t, err)
	return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"},
		Certificates: []tls.Certificate{pair}}
}

// A caller without permission cannot make a server hold incomplete messages in memory. The server has to refuse the
// call as soon as it has received the headers, because the message is never completed.
func TestUnpermittedCallsHoldNoMessages(t *testing.T) {
	r, gateway, _ := startGranted(t, 0)
	callers := r.strangerConfigs()
	shard := r.members[2].process
	servers := map[string]*process{"gateway": gateway.process, "shard": shard}
	before := map[string]int64{}
	for where, p := range servers {
		before[where] = p.resident(t)
	}
	for name, known := range callers {
		for where, p := range servers {
			t.Run(name+" at a "+where, func(t *testing.T) {
				sent := 0
				for range 2 {
					sent += holdMessages(t, p.server, known, recordv1.RecordService_Get_FullMethodName, 6, 20<<20)
				}
				grown := p.resident(t) - before[where]
				t.Logf("%d MiB sent, %d MiB more", sent>>20, grown>>20)
				if grown > 48<<20 {
					t.Errorf("%d MiB of memory for %d MiB of messages that nobody may send", grown>>20, sent>>20)
				}
			})
		}
	}
}

// unfinishedBytes returns the number of bytes that a process holds, according to its metric, for incomplete messages.
func (p *process) unfinishedBytes(t *testing.T) float64 {
	t.Helper()
	answer, err := http.Get("http://" + p.http + "/metrics")
	must(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		var bytes float64
		if _, err := fmt.Sscanf(line, "sheaf_unfinished_message_bytes %g", &bytes); err == nil {
			return bytes
		}
	}
	t.Fatal("no metric says what is held of messages without their end")
	return 0
}

// No matter how many messages callers leave incomplete, a process stays within the memory limit of its cgroup and
// serves other callers. A metric reports how many bytes are held.
func TestUnfinishedMessagesStayWithinACgroup(t *testing.T) {
	soaktest.Only(t, "proc", "it sends gigabytes, and makes cgroups")
	r, gateway, loader := startGranted(t, 512<<20)
	callers := r.strangerConfigs()
	callers["with a grant"] = r.tlsOf(loader)
	c, err := r.dial(gateway.process.server, loader.folder, false, false)
	must(t, err)
	defer func() { _ = c.Close() }()
	eventually(t, func() bool {
		_, err := c.Put(t.Context(), client.Key{ID: 1}, []byte("x"), nil)
		return err == nil
	})
	const put = recordv1.RecordService_Put_FullMethodName
	for name, known := range callers {
		for where, m := range map[string]*member{"gateway": gateway, "shard": r.members[2]} {
			t.Run(name+" at a "+where, func(t *testing.T) {
				granted := name == "with a grant"
				if sent := holdMessages(t, m.process.server, known, put, 2, 7<<20); granted && sent < 14<<20 {
					t.Errorf("%d bytes of 14 MiB are taken of who may call", sent)
				}
				if granted { // the last bytes may still be on their way
					eventually(t, func() bool { return m.process.unfinishedBytes(t) > 14<<20 })
				} else if held := m.process.unfinishedBytes(t); held > 1<<20 {
					t.Errorf("the metric says that %.0f bytes are held of who may not call", held)
				}
				sent := 0
				for range 8 {
					sent += holdMessages(t, m.process.server, known, put, 64, 7<<20)
				}
				t.Logf("%d MiB sent, %d MiB resident, %.0f MiB held", sent>>20, m.process.resident(t)>>20,
					m.process.unfinishedBytes(t)/(1<<20))
				if _, err := c.Get(t.Context(), client.Key{ID: 1}, nil); err != nil {
					t.Errorf("a call of somebody else: %v", err)
				}
				if kills := m.cgroup.kills(); kills > 0 {
					t.Fatalf("the kernel has killed %d processes", kills)
				}
			})
		}
	}
}

// Connections without a client certificate can take only a limited amount of memory, even if each has the maximum
// number of calls and the largest headers. Health checks of other callers are still answered.
func TestAnonymousConnectionsStayWithinCgroup(t *testing.T) {
	soaktest.Only(t, "proc", "it opens hundreds of connections, and makes cgroups")
	r, gateway, _ := startGranted(t, 256<<20)
	known := r.strangerConfigs()["without a certificate"]
	before := gateway.process.resident(t)
	headers := [2]string{"x", strings.Repeat("y", 3900)}
	const connections = 500
	for range connections {
		h := connect(t, gateway.process.server, known)
		for n := range uint32(100) {
			if !h.call(2*n+1, healthv1.Health_Watch_FullMethodName, headers) {
				break
			}
		}
	}
	eventually(t, func() bool { return strings.Contains(gateway.process.stderr.String(), "unknown_connections") })
	grown := gateway.process.resident(t) - before
	t.Logf("%d MiB more for %d connections", grown>>20, connections)
	if grown > 96<<20 || gateway.cgroup.kills() > 0 {
		t.Errorf("%d MiB more, %d processes killed", grown>>20, gateway.cgroup.kills())
	}
	h := connect(t, gateway.process.server, known)
	if !h.call(1, healthv1.Health_Check_FullMethodName) || h.WriteData(1, true, make([]byte, 5)) != nil {
		t.Fatal("the connection of a probe is closed")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, open := h.windows[1]; open; _, open = h.windows[1] {
		if h.ended {
			t.Fatal("the connection of a probe is closed")
		}
		h.changed.Wait()
	}
}

// TestUnreadAnswersStayWithinACgroup makes calls whose answers the server cannot send. Such a call keeps its headers in
// the server even after its handler has returned, because gRPC releases a call only after it has written the end of the
// answer.
func TestUnreadAnswersStayWithinACgroup(t *testing.T) {
	soaktest.Only(t, "proc", "it makes some 200,000 calls, and cgroups")
	r, gateway, _ := startGranted(t, 256<<20)
	callers := r.strangerConfigs()
	for who, c := range map[string]struct {
		method  string
		headers int
		most    int64 // peak memory in bytes
	}{
		"without a certificate": {healthv1.Health_Check_FullMethodName, 3900, 64 << 20},
		"without a grant":       {recordv1.AccessService_WhoAmI_FullMethodName, 15 << 10, 128 << 20},
	} {
		headers := [2]string{"x", strings.Repeat("y", c.headers)}
		for where, m := range map[string]*member{"gateway": gateway, "shard": r.members[2]} {
			t.Run(who+" at a "+where, func(t *testing.T) {
				before, sent := m.process.resident(t), 0
				for range 20 {
					h := connect(t, m.process.server, callers[who])
					must(t, h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
					must(t, h.conn.SetWriteDeadline(time.Now().Add(time.Second))) // the server may read only a part of the data
					for n := range uint32(4000) {
						if !h.call(2*n+1, c.method, headers) || h.WriteData(2*n+1, true, make([]byte, 5)) != nil {
							break
						}
						sent++
					}
					if kills := m.cgroup.kills(); kills > 0 {
						t.Fatalf("the kernel has killed %d processes, after %d calls", kills, sent)
					}
				}
				grown := m.process.resident(t) - before
				t.Logf("%d MiB more for %d calls", grown>>20, sent)
				soaktest.Report(t, "MiB more", grown>>20)
				if grown > c.most {
					t.Errorf("%d MiB more", grown>>20)
				}
				m.process.waitReady(t)
			})
		}
	}
}
