package gateway_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/test/must"
)

// A request that two servers could understand in two ways is refused, and its connection is closed.
func TestSmuggledRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb(t, hash(1), gateway.Config{}, "a")
		w.put("", 7, "hello")
		const second = "GET /v1/records/0/7 HTTP/1.1\r\nHost: g\r\n\r\n"
		for name, first := range map[string]string{
			"two lengths": "POST /v1/batch.tar HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
			"a length and chunks": "GET /v1/records/0/8 HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\n" +
				"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
			"a body of a GET": "GET /v1/records/0/8 HTTP/1.1\r\nHost: g\r\nContent-Length: 43\r\n\r\n",
			"an encoding":     "POST /v1/batch.tar HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked, x\r\n\r\n",
			"no host":         "GET /v1/records/0/8 HTTP/1.1\r\n\r\n",
			"a line":          "GET /v1/records/0/8\r\nX HTTP/1.1\r\nHost: g\r\n\r\n",
			"HTTP/2":          "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		} {
			conn, err := w.network.Dial(w.ctx, w.gateway.RecordsHTTPAddr())
			must.OK(t, err)
			_, err = io.WriteString(conn, first+second)
			must.OK(t, err)
			answers := bufio.NewReader(conn)
			r, err := http.ReadResponse(answers, nil) //nolint:bodyclose // the connection is closed with the network
			must.OK(t, err)
			_, err = io.Copy(io.Discard, r.Body)
			must.OK(t, err)
			if rest, _ := io.ReadAll(answers); r.StatusCode < 400 || len(rest) > 0 {
				t.Errorf("%s: %s, then %q", name, r.Status, rest)
			}
			_ = conn.Close()
		}
	})
}

// Callers that take nothing hold bounded memory, and are cut off after a minute. Others are served meanwhile.
func TestUnreadAnswersOverHTTPAreBounded(t *testing.T) {
	for name, request := range map[string]string{
		"scan":   "GET /v1/scan.tar?group=0 HTTP/1.1\r\nHost: g\r\n\r\n",
		"batch":  "POST /v1/batch.tar HTTP/1.1\r\nHost: g\r\nContent-Length: 27\r\n\r\n" + `{"ids": [1,2,3,4,5,6,7,8] }`,
		"record": "GET /v1/records/0/1 HTTP/1.1\r\nHost: g\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 16 << 20
				c, held, _ := startUnread(t, gateway.Limits{AnswerBytesMax: limit}, "gateway:0")
				w := webOf(c)
				var conns []net.Conn
				for range 64 {
					conn, err := c.network.Dial(c.ctx, c.gateway.RecordsHTTPAddr())
					must.OK(t, err)
					_, err = io.WriteString(conn, request)
					must.OK(t, err)
					conns = append(conns, conn)
				}
				time.Sleep(5 * time.Second)
				if n := held(); n > limit || n < limit/4 {
					t.Errorf("%d bytes are held", n)
				}
				if r := w.ask("GET", "/v1/records/0/25", ""); r.StatusCode != http.StatusNotFound {
					t.Errorf("others get %s", r.Status)
				}
				time.Sleep(2 * time.Minute)
				if n := held(); n != 0 {
					t.Errorf("when they have been cut off, %d bytes are held", n)
				}
				refused := 0
				for _, conn := range conns {
					raw, err := io.ReadAll(conn)
					if strings.HasPrefix(string(raw), "HTTP/1.1 503") && strings.Contains(string(raw), "OVERLOADED") {
						refused++
					} else if err == nil && strings.HasSuffix(string(raw), "\r\n0\r\n\r\n") {
						t.Error("an answer that nobody took is whole")
					}
					_ = conn.Close()
				}
				if refused == 0 {
					t.Error("none of 64 was refused")
				}
			})
		})
	}
}

// A caller that hangs up ends the call at the shard. The stop of a gateway does not wait for one that takes nothing.
func TestHangUpsAndStopsOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, held, ended := startUnread(t, gateway.Limits{}, "gateway:0")
		w := webOf(c)
		r := w.ask("GET", "/v1/scan.tar", "")
		_, err := io.ReadFull(r.Body, make([]byte, 1000))
		must.OK(t, err)
		_ = r.Body.Close()
		until(t, "the call has ended", func() bool { return ended(codes.Canceled) > 0 && held() == 0 })
		idle, err := c.network.Dial(c.ctx, c.gateway.RecordsHTTPAddr())
		must.OK(t, err)
		began := time.Now()
		if _, err := io.ReadAll(idle); err != nil || time.Since(began) > 11*time.Second {
			t.Errorf("a connection without a request is closed after %v, %v", time.Since(began), err)
		}
		slow, err := c.network.Dial(c.ctx, c.gateway.RecordsHTTPAddr())
		must.OK(t, err)
		_, err = io.WriteString(slow, "POST /v1/batch.tar HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\n{")
		must.OK(t, err)
		began = time.Now()
		answer, err := io.ReadAll(slow)
		if !strings.HasPrefix(string(answer), "HTTP/1.1 400") || time.Since(began) > 62*time.Second {
			t.Errorf("a body that does not arrive: %q after %v, %v", answer, time.Since(began), err)
		}
		_ = w.ask("GET", "/v1/scan.tar", "")
		until(t, "the stream holds something", func() bool { return held() > 0 })
		stop, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := c.gateway.Stop(stop); err != nil || stop.Err() != nil {
			t.Errorf("stopping: %v; waited for the end: %v", err, stop.Err())
		}
		c.gateway = nil
	})
}
