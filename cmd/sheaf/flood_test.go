package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"sheaf.dev/sheaf/client"
)

// resident is the memory of a process that is in use, in bytes.
func (p *process) resident(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no VmRSS in %s", status)
	}
	kib, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// flooder is a connection of somebody who knows HTTP/2, with the certificate of an administrator.
type flooder struct {
	*http2.Framer
	conn net.Conn
	t    testing.TB
}

func flood(t testing.TB, server string, cfg *tls.Config) *flooder {
	t.Helper()
	conn, err := tls.Dial("tcp", server, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f := &flooder{Framer: http2.NewFramer(conn, conn), conn: conn, t: t}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

// headers of a call, with another field.
func headers(name, value string) []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", "/sheaf.record.v1.RecordService/Get"}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {name, value}} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // into memory
	}
	return block.Bytes()
}

// drain reads what comes until the connection ends, and says when that was.
func drain(conn net.Conn) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, conn)
	}()
	return ended
}

// flooded is a store with TLS that is about to be flooded. It holds record 1.
type flooded struct {
	*process
	client *client.Client
	known  *tls.Config // of an administrator
}

func startFlooded(t testing.TB) *flooded {
	t.Helper()
	dir := t.TempDir()
	d := startDev(t, dir, "--tls")
	folder := filepath.Join(dir, "tls/admin")
	files := client.TLSFiles{CA: filepath.Join(folder, "ca.crt"), Cert: filepath.Join(folder, "tls.crt"), Key: filepath.Join(folder, "tls.key")}
	creds, err := client.TLS(files)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(t.Context(), client.Config{Addresses: []string{d.server}, Credentials: creds})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Put(t.Context(), client.Key{ID: 1}, make([]byte, 10_000), nil); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return &flooded{process: d, client: c, known: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots, NextProtos: []string{"h2"}}}
}

// floods are by name. Each goes on for a while, and says how much it has sent.
func (d *flooded) floods() map[string]func(t testing.TB) (sent int) {
	return map[string]func(t testing.TB) (sent int){
		"handshakes that do not go on": func(t testing.TB) (sent int) {
			var ends []<-chan struct{}
			for range 1000 {
				conn, err := net.Dial("tcp", d.server)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				if _, err := conn.Write([]byte{22, 3, 1}); err != nil { // the begin of a handshake
					t.Fatal(err)
				}
				ends = append(ends, drain(conn))
				sent++
			}
			for _, end := range ends {
				<-end // the gateway closes it
			}
			return sent
		},
		"streams that are reset at once": func(t testing.TB) (sent int) {
			f := flood(t, d.server, d.known)
			ended := drain(f.conn)
			block := headers("x", "y")
			for id := uint32(1); id < 60_000; id += 2 {
				err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
				if err == nil {
					err = f.WriteRSTStream(id, http2.ErrCodeCancel)
				}
				if err != nil {
					break // the gateway has had enough
				}
				sent++
			}
			_ = f.conn.Close()
			<-ended
			return sent
		},
		"headers without an end": func(t testing.TB) (sent int) {
			f := flood(t, d.server, d.known)
			ended := drain(f.conn)
			block := headers("x", strings.Repeat("y", 10_000))
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block}); err != nil {
				t.Fatal(err)
			}
			var more bytes.Buffer
			if err := hpack.NewEncoder(&more).WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("z", 10_000)}); err != nil {
				t.Fatal(err)
			}
			for ; sent < 100_000; sent++ {
				if err := f.WriteContinuation(1, false, more.Bytes()); err != nil {
					break
				}
			}
			if sent == 100_000 {
				t.Error("a gigabyte of headers is taken")
			}
			<-ended
			return sent + 1
		},
		"headers that are too long": func(t testing.TB) (sent int) {
			for range 20 {
				f := flood(t, d.server, d.known)
				block := headers("x", strings.Repeat("y", 1<<20))
				err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16_000]})
				for rest := block[16_000:]; err == nil && len(rest) > 0; {
					n := min(16_000, len(rest))
					err = f.WriteContinuation(1, n == len(rest), rest[:n])
					rest = rest[n:]
				}
				// It is refused, by an answer or by the end of the connection.
				for refused := false; !refused; {
					frame, err := f.ReadFrame()
					switch frame := frame.(type) {
					case *http2.GoAwayFrame, *http2.RSTStreamFrame:
						refused = true
					case *http2.HeadersFrame:
						t.Errorf("a call with a megabyte of headers is answered: %v", frame)
						refused = true
					}
					refused = refused || err != nil
				}
				_ = f.conn.Close()
				sent++
			}
			return sent
		},
	}
}

// Whoever floods a gateway, with or without a certificate, costs it bounded memory, and the calls of others go on.
func TestFloodsAreBounded(t *testing.T) {
	d := startFlooded(t)
	c := d.client
	for name, run := range d.floods() {
		t.Run(name, func(t *testing.T) {
			before := d.resident(t)
			ctx, stop := context.WithCancel(t.Context())
			var served atomic.Int64
			done := make(chan error, 1)
			go func() {
				for {
					if _, err := c.Get(ctx, client.Key{ID: 1}, nil); err != nil {
						if ctx.Err() != nil {
							err = nil
						}
						done <- err
						return
					}
					served.Add(1)
				}
			}()
			sent := run(t)
			grown := d.resident(t) - before
			for during := served.Load(); served.Load() == during && len(done) == 0; { // calls go on after it, too
				time.Sleep(time.Millisecond)
			}
			stop()
			if err := <-done; err != nil {
				t.Errorf("a call of somebody else: %v", err)
			}
			if sent == 0 {
				t.Error("nothing was sent")
			}
			if grown > 128<<20 {
				t.Errorf("%d MiB more memory after %d", grown>>20, sent)
			}
			t.Logf("%d sent, %d calls of others answered, %d MiB more", sent, served.Load(), grown>>20)
		})
	}
	select {
	case <-d.ended:
		t.Error(errors.New("the store has ended"))
	default:
	}
}

// BenchmarkFloods measures what is left to others beside each flood: gets of four callers, as a part of those without
// it, in turns. Flooder, callers and store share the processors.
func BenchmarkFloods(b *testing.B) {
	d := startFlooded(b)
	for name, run := range d.floods() {
		b.Run(name, func(b *testing.B) {
			var served atomic.Int64
			over := make(chan struct{})
			var callers sync.WaitGroup
			for range 4 {
				callers.Go(func() {
					for {
						select {
						case <-over:
							return
						default:
						}
						if _, err := d.client.Get(context.Background(), client.Key{ID: 1}, nil); err != nil {
							b.Errorf("a call of somebody else: %v", err)
							return
						}
						served.Add(1)
					}
				})
			}
			var alone, beside, floods float64
			var timeAlone, timeBeside time.Duration
			for range 3 {
				begun, before := time.Now(), served.Load()
				time.Sleep(2 * time.Second)
				timeAlone += time.Since(begun)
				alone += float64(served.Load() - before)
				begun, before = time.Now(), served.Load()
				for time.Since(begun) < 2*time.Second {
					floods += float64(run(b))
				}
				timeBeside += time.Since(begun)
				beside += float64(served.Load() - before)
			}
			close(over)
			callers.Wait()
			alone, beside = alone/timeAlone.Seconds(), beside/timeBeside.Seconds()
			b.ReportMetric(alone, "calls-alone/s")
			b.ReportMetric(beside, "calls-beside/s")
			b.ReportMetric(beside/alone, "goodput-ratio")
			b.ReportMetric(floods/timeBeside.Seconds(), "flood/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
