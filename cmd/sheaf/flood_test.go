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
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// resident returns the resident memory of a process, in bytes.
func (p *process) resident(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(t, err)
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no VmRSS in %s", status)
	}
	kib, err := strconv.ParseInt(string(found[1]), 10, 64)
	must(t, err)
	return kib << 10
}

// attacker is an HTTP/2 client with the certificate of an administrator.
type attacker struct {
	server string
	known  *tls.Config
	total  *atomic.Int64 // the amount sent; nil if it is not counted
}

// count adds one to the number sent, and to the total if there is one.
func (a attacker) count(sent *int) {
	*sent++
	if a.total != nil {
		a.total.Add(1)
	}
}

// flooder is an attacker's connection.
type flooder struct {
	*http2.Framer
	conn net.Conn
}

// dial connects and sends the preface of HTTP/2.
func (a attacker) dial() (*flooder, error) {
	conn, err := tls.Dial("tcp", a.server, a.known)
	if err != nil {
		return nil, err
	}
	f := &flooder{Framer: http2.NewFramer(conn, conn), conn: conn}
	if _, err = io.WriteString(conn, http2.ClientPreface); err == nil {
		err = f.WriteSettings()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return f, nil
}

// headers returns the header block of a call with one additional field.
func headers(name, value string) []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"},
		{":path", "/sheaf.record.v1.RecordService/Get"}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {name, value}} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // a write to memory cannot fail
	}
	return block.Bytes()
}

// drain discards incoming data, and closes the channel when the connection ends.
func drain(conn net.Conn) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, conn)
	}()
	return ended
}

// flooded is a store with TLS that floods are aimed at. It contains one record, with id 1.
type flooded struct {
	*process
	attacker
	client *client.Client
	files  client.TLSFiles // files of the administrator
}

// knownBy returns the TLS configuration of an HTTP/2 client that uses the given certificate files.
func knownBy(files client.TLSFiles) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	bundle, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots,
		NextProtos: []string{"h2"}}, nil
}

func startFlooded(t testing.TB) *flooded {
	t.Helper()
	dir := t.TempDir()
	d := startDev(t, dir, "--tls")
	folder := filepath.Join(dir, "tls/admin")
	files := client.TLSFiles{CA: filepath.Join(folder, "ca.crt"), Cert: filepath.Join(folder, "tls.crt"),
		Key: filepath.Join(folder, "tls.key")}
	creds, err := client.TLS(files)
	must(t, err)
	c, err := client.Dial(t.Context(), client.Config{Addresses: []string{d.server}, Credentials: creds})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Put(t.Context(), client.Key{ID: 1}, make([]byte, 10_000), nil); err != nil {
		t.Fatal(err)
	}
	known, err := knownBy(files)
	must(t, err)
	return &flooded{process: d, attacker: attacker{server: d.server, known: known}, client: c, files: files}
}

// floodTime limits the duration of a flood, because the gateway may read slowly.
const floodTime = 2 * time.Second

// floods maps names to floods. Each flood runs for a while and returns the amount that it has sent. It returns an error
// if the gateway misbehaved, or if nothing could be sent.
var floods = map[string]func(attacker) (sent int, err error){
	"handshakes that do not go on":   halfOpen,
	"handshakes one after another":   handshakes,
	"streams that are reset at once": resets,
	"settings":                       settings,
	"headers without an end":         endless,
	"headers that are too long":      tooLong,
}

func halfOpen(a attacker) (sent int, err error) {
	var ends []<-chan struct{}
	for range 500 {
		conn, err := net.Dial("tcp", a.server)
		if err != nil {
			return sent, err
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte{22, 3, 1}); err != nil { // the start of a handshake
			return sent, err
		}
		ends = append(ends, drain(conn))
		a.count(&sent)
	}
	for _, end := range ends {
		<-end // the gateway closes the connection
	}
	return sent, nil
}

func handshakes(a attacker) (sent int, err error) {
	for range 50 {
		f, err := a.dial()
		if err != nil {
			return sent, err
		}
		_ = f.conn.Close()
		a.count(&sent)
	}
	return sent, nil
}

// sendUntil opens a connection and calls send repeatedly. It stops when send fails, or when the number of frames sent
// has reached the limit most. The argument before tells send how many frames were sent earlier.
//
//nolint:nilerr // the gateway may end the connection
func (a attacker) sendUntil(most int, send func(f *flooder, before int) error) (sent int, err error) {
	f, err := a.dial()
	if err != nil {
		return 0, err
	}
	_ = f.conn.SetDeadline(time.Now().Add(floodTime)) // cannot fail, because the connection is open
	ended := drain(f.conn)
	for sent < most {
		if err := send(f, sent); err != nil {
			break // the gateway has closed the connection
		}
		a.count(&sent)
	}
	_ = f.conn.Close()
	<-ended
	return sent, nil
}

func resets(a attacker) (sent int, err error) {
	block := headers("x", "y")
	return a.sendUntil(30_000, func(f *flooder, before int) error {
		id := uint32(2*before + 1)
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
		if err == nil {
			err = f.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		return err
	})
}

func settings(a attacker) (sent int, err error) {
	return a.sendUntil(30_000, func(f *flooder, before int) error {
		return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(65_535 + before)})
	})
}

func endless(a attacker) (sent int, err error) {
	f, err := a.dial()
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.conn.Close() }()
	ended := drain(f.conn)
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1,
		BlockFragment: headers("x", strings.Repeat("y", 10_000))}); err != nil {
		return 0, err
	}
	var more bytes.Buffer
	if err := hpack.NewEncoder(&more).WriteField(hpack.HeaderField{Name: "x",
		Value: strings.Repeat("z", 10_000)}); err != nil {
		return 0, err
	}
	for sent < 100_000 {
		if err := f.WriteContinuation(1, false, more.Bytes()); err != nil {
			break
		}
		a.count(&sent)
	}
	if sent == 100_000 {
		return sent, errors.New("a gigabyte of headers is taken")
	}
	<-ended
	return sent + 1, nil
}

func tooLong(a attacker) (sent int, err error) {
	block := headers("x", strings.Repeat("y", 1<<20))
	for range 20 {
		f, err := a.dial()
		if err != nil {
			return sent, err
		}
		err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16_000]})
		for rest := block[16_000:]; err == nil && len(rest) > 0; {
			n := min(16_000, len(rest))
			err = f.WriteContinuation(1, n == len(rest), rest[:n])
			rest = rest[n:]
		}
		// The gateway either answers with a refusal or closes the connection.
		for refused := false; !refused; {
			frame, err := f.ReadFrame()
			switch frame := frame.(type) {
			case *http2.GoAwayFrame, *http2.RSTStreamFrame:
				refused = true
			case *http2.HeadersFrame:
				return sent, fmt.Errorf("a call with a megabyte of headers is answered: %v", frame)
			}
			refused = refused || err != nil
		}
		_ = f.conn.Close()
		a.count(&sent)
	}
	return sent, nil
}

// A client may flood a gateway, with or without a certificate. The gateway then uses only a limited amount of memory,
// and still answers the calls of other clients.
func TestFloodsAreBounded(t *testing.T) {
	soaktest.Only(t, "proc", "it floods the machine with connections and frames")
	d := startFlooded(t)
	c := d.client
	for name, run := range floods {
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
			sent, err := run(d.attacker)
			if err != nil {
				t.Error(err)
			}
			grown := d.resident(t) - before
			for during := served.Load(); served.Load() == during && len(done) == 0; { // calls still succeed after the flood
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
