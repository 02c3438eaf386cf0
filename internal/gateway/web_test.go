package gateway_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// webClient is a client of records over HTTP.
type webClient struct {
	*cluster
	http *http.Client
}

// newWeb starts a cluster that serves records over HTTP.
func newWeb(t *testing.T, meta placement.Meta, cfg gateway.Config, shards ...string) *webClient {
	t.Helper()
	cfg.RecordsHTTP = "gateway:0"
	return webOf(newCluster(t, meta, cfg, shards...))
}

func webOf(c *cluster) *webClient {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return c.network.Dial(ctx, c.gateway.RecordsHTTPAddr())
	}}
	c.t.Cleanup(transport.CloseIdleConnections)
	return &webClient{c, &http.Client{Transport: transport}}
}

// ask makes a request. Headers are pairs of names and values.
func (w *webClient) ask(method, path, body string, headers ...string) *http.Response {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.ctx, method, "http://gateway"+path, strings.NewReader(body))
	must.OK(w.t, err)
	if body == "" {
		r.Body, r.ContentLength = http.NoBody, 0
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	answer, err := w.http.Do(r)
	must.OK(w.t, err)
	w.t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// text returns the whole body.
func (w *webClient) text(r *http.Response) string {
	w.t.Helper()
	body, err := io.ReadAll(r.Body)
	must.OK(w.t, err)
	_ = r.Body.Close()
	return string(body)
}

func (w *webClient) put(group string, id int64, data string) {
	w.t.Helper()
	_, err := w.records.Put(w.ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Group: group, Id: id}, Data: []byte(data)})
	must.OK(w.t, err)
}

// Each row is a request and what must follow. The record has id 7 and data "hello".
func TestARecordOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb(t, hash(1), gateway.Config{}, "a")
		w.put("", 7, "hello")
		w.put("", math.MinInt64, "least")
		w.put("", math.MaxInt64, "most")
		w.put("", 8, "")
		const path = "/v1/records/0/7"
		for name, c := range map[string]struct {
			method, path, body string
			headers            []string
			status             int
			answer             string // the body, or a part of an error
			has                map[string]string
		}{
			"a record": {path: path, status: 200, answer: "hello", has: map[string]string{"Etag": `"v1"`,
				"Content-Length": "5", "Content-Type": "application/octet-stream", "Sheaf-Group": "0", "Sheaf-Id": "7",
				"Sheaf-Crc32c": "9a71bb4c", "X-Content-Type-Options": "nosniff", "Accept-Ranges": "bytes"}},
			"the group of the id": {path: "/v1/records/-/7", status: 200, answer: "hello"},
			"the smallest id":     {path: "/v1/records/-/-9223372036854775808", status: 200, answer: "least"},
			"the largest id":      {path: "/v1/records/-/9223372036854775807", status: 200, answer: "most"},
			"an id above it":      {path: "/v1/records/-/9223372036854775808", status: 400, answer: "shortest form"},
			"no data":             {path: "/v1/records/0/8", status: 200, answer: "", has: map[string]string{"Content-Length": "0"}},
			"HEAD": {method: "HEAD", path: path, status: 200, has: map[string]string{"Etag": `"v1"`,
				"Content-Length": "5"}},
			"no record":        {path: "/v1/records/0/9", status: 404, answer: `"reason":"RECORD_NOT_FOUND"`},
			"HEAD, no record":  {method: "HEAD", path: "/v1/records/0/9", status: 404},
			"a range":          {path: path, headers: []string{"Range", "bytes=1-3"}, status: 206, answer: "ell", has: map[string]string{"Content-Range": "bytes 1-3/5", "Content-Length": "3"}},
			"from a byte on":   {path: path, headers: []string{"Range", "bytes=3-"}, status: 206, answer: "lo"},
			"the last bytes":   {path: path, headers: []string{"Range", "bytes=-2"}, status: 206, answer: "lo"},
			"more than all":    {path: path, headers: []string{"Range", "bytes=-99999999999999999999"}, status: 206, answer: "hello"},
			"beyond the end":   {path: path, headers: []string{"Range", "bytes=2-99999999999999999999"}, status: 206, answer: "llo"},
			"behind the end":   {path: path, headers: []string{"Range", "bytes=5-"}, status: 416, answer: "BAD_RANGE", has: map[string]string{"Content-Range": "bytes */5"}},
			"far behind it":    {path: path, headers: []string{"Range", "bytes=99999999999999999999-"}, status: 416, answer: "BAD_RANGE"},
			"no bytes":         {path: path, headers: []string{"Range", "bytes=-0"}, status: 416, answer: "BAD_RANGE"},
			"of no data":       {path: "/v1/records/0/8", headers: []string{"Range", "bytes=0-"}, status: 416, answer: "BAD_RANGE"},
			"backwards":        {path: path, headers: []string{"Range", "bytes=3-1"}, status: 200, answer: "hello"},
			"two ranges":       {path: path, headers: []string{"Range", "bytes=0-0,2-2"}, status: 200, answer: "hello"},
			"another unit":     {path: path, headers: []string{"Range", "records=0-0"}, status: 200, answer: "hello"},
			"of this version":  {path: path, headers: []string{"Range", "bytes=0-0", "If-Range", `"v1"`}, status: 206, answer: "h"},
			"of another one":   {path: path, headers: []string{"Range", "bytes=0-0", "If-Range", `"v0"`}, status: 200, answer: "hello"},
			"is still there":   {path: path, headers: []string{"If-None-Match", `"v0", W/"v1"`}, status: 304, has: map[string]string{"Etag": `"v1"`}},
			"is anything":      {path: path, headers: []string{"If-None-Match", "*"}, status: 304},
			"was another one":  {path: path, headers: []string{"If-None-Match", `"v0"`}, status: 200, answer: "hello"},
			"a view":           {path: path + "?view=x", status: 404, answer: "VIEW_UNKNOWN"},
			"a parameter":      {path: path + "?viwe=x", status: 400, answer: "no parameter"},
			"given twice":      {path: path + "?version=a&version=b", status: 400, answer: "given 2 times"},
			"a number twice":   {path: "/v1/records/0/07", status: 400, answer: "shortest form"},
			"a plus":           {path: "/v1/records/0/+7", status: 400, answer: "shortest form"},
			"no id":            {path: "/v1/records/0", status: 400, answer: "GROUP/ID"},
			"no number":        {path: "/v1/records/0/x", status: 400, answer: "shortest form"},
			"a slash more":     {path: "/v1/records/0/7/", status: 400, answer: "shortest form"},
			"two slashes":      {path: "/v1/records//7", status: 400, answer: "GROUP/ID"},
			"a spelling":       {path: "/v1/records/%30/7", status: 404, answer: "shortest form"},
			"upwards":          {path: "/v1/records/../7", status: 400, answer: "group"},
			"another path":     {path: "/", status: 404, answer: "/v1/records/GROUP/ID"},
			"another method":   {method: "PUT", path: path, status: 405, answer: "GET, HEAD", has: map[string]string{"Allow": "GET, HEAD"}},
			"a body":           {path: path, body: "x", status: 400, answer: "body"},
			"a scan by POST":   {method: "POST", path: "/v1/scan.tar", status: 405, answer: "GET"},
			"a batch by GET":   {path: "/v1/batch.tar", status: 405, answer: "POST"},
			"a forged split":   {path: "/v1/scan.tar?split=4/4", status: 400, answer: "split"},
			"a negative split": {path: "/v1/scan.tar?split=-1/4", status: 400, answer: "split"},
			"no split":         {path: "/v1/scan.tar?split=0/0", status: 400, answer: "split"},
			"half a split":     {path: "/v1/scan.tar?split=1", status: 400, answer: "split"},
			"many splits":      {path: "/v1/scan.tar?split=0/65537", status: 400, answer: "split"},
			"a scan of a view": {path: "/v1/scan.tar?view=x", status: 404, answer: "VIEW_UNKNOWN"},
			"no group":         {path: "/v1/scan.tar?group=", status: 400, answer: "group"},
			"another group":    {path: "/v1/scan.tar?group=9", status: 404, answer: "GROUP_NOT_FOUND"},
		} {
			if c.method == "" {
				c.method = "GET"
			}
			r := w.ask(c.method, c.path, c.body, c.headers...)
			text := w.text(r)
			if r.StatusCode != c.status || c.status < 300 && text != c.answer || !strings.Contains(text, c.answer) {
				t.Errorf("%s: %s, %q", name, r.Status, text)
			}
			for h, want := range c.has {
				if got := r.Header.Get(h); got != want {
					t.Errorf("%s: %s is %q instead of %q", name, h, got, want)
				}
			}
		}
	})
}

// Errors of shards have their status, reason and time of a retry.
func TestErrorsOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb(t, hash(1), gateway.Config{}, "a")
		for _, c := range []struct {
			err    error
			status int
			reason string
			after  string
		}{
			{refuse(codes.ResourceExhausted, "QUOTA_EXCEEDED", retryInfo(1200*time.Millisecond)), 429, "QUOTA_EXCEEDED", "2"},
			{refuse(codes.Unavailable, "GROUP_LOADING", retryInfo(90*time.Second)), 503, "GROUP_LOADING", "90"},
			{refuse(codes.ResourceExhausted, "OVERLOADED", retryInfo(90*time.Second)), 503, "OVERLOADED", "90"},
			{refuse(codes.PermissionDenied, "X"), 403, "X", ""},
			{refuse(codes.Unauthenticated, "X"), 401, "X", ""},
			{refuse(codes.DataLoss, "DAMAGED"), 500, "DAMAGED", ""},
			{refuse(codes.FailedPrecondition, "GROUP_FAILED"), 500, "GROUP_FAILED", ""},
		} {
			w.shards["a"].failFirst(math.MaxInt, "Get", c.err)
			r := w.ask("GET", "/v1/records/0/1", "")
			var body struct {
				Error struct {
					Reason, Message string
				}
			}
			must.OK(t, json.Unmarshal([]byte(w.text(r)), &body))
			if r.StatusCode != c.status || body.Error.Reason != c.reason || r.Header.Get("Retry-After") != c.after ||
				body.Error.Message == "" {
				t.Errorf("%v: %s, %+v, again after %q", c.err, r.Status, body, r.Header.Get("Retry-After"))
			}
		}
	})
}

// large makes the stand-ins answer as shards do for data above n bytes.
func (w *webClient) large(n int) {
	for _, s := range w.shards {
		s.mu.Lock()
		s.large = n
		s.mu.Unlock()
	}
}

func TestALargeRecordOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb(t, hash(1), gateway.Config{}, "a")
		data := strings.Repeat("0123456789", 100_000)
		w.put("", 7, data)
		w.large(1000)
		for want, header := range map[string]string{data: "", data[123_456:654_322]: "bytes=123456-654321",
			data[len(data)-7:]: "bytes=-7"} {
			r := w.ask("GET", "/v1/records/0/7", "", "Range", header)
			if got := w.text(r); got != want || r.ContentLength != int64(len(want)) || r.Header.Get("ETag") != `"v1"` {
				t.Errorf("%q: %s, %d bytes of %d", header, r.Status, len(got), len(want))
			}
		}
		if r := w.ask("GET", "/v1/records/0/7", "", "Range", "bytes=1000000-"); r.StatusCode != 416 {
			t.Error(r.Status)
		}
		// A record that is replaced before its first byte is read anew.
		replaced := w.shards["a"].failFirst(1, "Download", refuse(codes.NotFound, "VERSION_NOT_FOUND"))
		if got := w.text(w.ask("GET", "/v1/records/0/7", "")); got != data || *replaced != 1 {
			t.Errorf("%d bytes, replaced %d times", len(got), *replaced)
		}
		// The shard fails in the middle.
		w.shards["a"].failFirst(math.MaxInt, "Download chunk", nil)
		chunks := 0
		w.shards["a"].mu.Lock()
		w.shards["a"].fault = func(method string, _ *recordv1.RecordKey) error {
			if chunks++; method == "Download chunk" && chunks > 5 {
				return refuse(codes.Unavailable, "STOPPING")
			}
			return nil
		}
		w.shards["a"].mu.Unlock()
		r := w.ask("GET", "/v1/records/0/7", "")
		if got, err := io.ReadAll(r.Body); !errors.Is(err, io.ErrUnexpectedEOF) || len(got) >= len(data) {
			t.Errorf("a record that is cut: %d bytes, %v", len(got), err)
		}
	})
}

// members reads an archive, and returns its names and data.
func members(from io.Reader) (names []string, data map[string]string, err error) {
	data = map[string]string{}
	archive := tar.NewReader(from)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			// Behind the end of the archive, the end of the answer must follow.
			rest, err := io.Copy(io.Discard, from)
			if err == nil && rest > 0 {
				err = fmt.Errorf("%d bytes follow the archive", rest)
			}
			return names, data, err
		}
		if err != nil {
			return names, data, err
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			return names, data, err
		}
		names, data[h.Name] = append(names, h.Name), string(text)
	}
}

// The parts of a scan have each record once. A group with a long name and large records are members, too.
func TestAScanAsTar(t *testing.T) {
	long := strings.Repeat("g", 200)
	for name, meta := range map[string]placement.Meta{"hash": hash(4), "named": named()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWeb(t, meta, gateway.Config{}, "a", "b")
				want := map[string]string{}
				if name == "named" {
					for i, group := range []string{"one", "two", long} {
						w.awaitEpoch(w.setOwner(placement.NewGroup(meta.Routing, group, i), []string{"a", "b"}[i%2]))
					}
				}
				for id := int64(1); id <= 60; id++ {
					group := []string{"one", "two", long}[id%3]
					data := strings.Repeat("x", int(id)*40)
					w.put(map[bool]string{true: group}[name == "named"], id, data)
					if name == "hash" {
						group = placement.GroupName(meta.Routing.GroupOf(id))
					}
					want[fmt.Sprintf("%s/%d", group, id)] = data
				}
				w.large(2000)
				for _, of := range []int{1, 2, 3, 4, 7, 65536} {
					found := map[string]string{}
					parts := of
					if of == 65536 {
						parts = 3
					}
					for part := range parts {
						r := w.ask("GET", fmt.Sprintf("/v1/scan.tar?split=%d/%d", part, of), "")
						names, data, err := members(r.Body)
						if err != nil || r.StatusCode != 200 || len(names)%2 != 0 {
							t.Fatalf("part %d of %d: %s, %v, %d", part, of, r.Status, err, len(names))
						}
						for i := 0; i < len(names); i += 2 {
							key, is := strings.CutSuffix(names[i], ".json")
							if !is || names[i+1] != key+".bin" || found[key] != "" {
								t.Fatalf("member %s, then %s", names[i], names[i+1])
							}
							found[key] = data[key+".bin"]
							_, id, _ := strings.Cut(key, "/")
							var about struct {
								ID        string
								SizeBytes int
							}
							if must.OK(t, json.Unmarshal([]byte(data[names[i]]), &about)); about.ID != id ||
								about.SizeBytes != len(found[key]) {
								t.Errorf("%s: %s", names[i], data[names[i]])
							}
						}
					}
					if of < 65536 && !maps.Equal(found, want) {
						t.Errorf("%d parts have %d records instead of %d", of, len(found), len(want))
					}
				}
			})
		})
	}
}

// cutBy reads the answer to a request whose scan or batch fails in the middle.
func (w *webClient) cutBy(method, path, body string) error {
	w.t.Helper()
	r := w.ask(method, path, body)
	raw, err := io.ReadAll(r.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || r.StatusCode != 200 {
		w.t.Errorf("the answer does not say that it is cut: %s, %v", r.Status, err)
	}
	_, _, err = members(bytes.NewReader(raw))
	return err
}

func TestAnArchiveThatIsCutIsSeenAsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb(t, hash(1), gateway.Config{}, "a")
		for id := range int64(20) {
			w.put("", id, strings.Repeat("x", 3000))
		}
		w.large(2000)
		died := refuse(codes.Unavailable, "STOPPING")
		for _, method := range []string{"Scan end", "Download chunk"} {
			w.shards["a"].failFirst(math.MaxInt, method, died)
			if err := w.cutBy("GET", "/v1/scan.tar", ""); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s fails, and a reader of the archive gets %v", method, err)
			}
		}
		w.shards["a"].failFirst(math.MaxInt, "Download chunk", died)
		if err := w.cutBy("POST", "/v1/batch.tar", `{"ids": [1, 2]}`); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a reader of a batch gets %v", err)
		}
		w.large(1 << 20)
		w.shards["a"].failFirst(math.MaxInt, "Scan end", refuse(codes.DataLoss, "DAMAGED"))
		if err := w.cutBy("GET", "/v1/scan.tar?group=0", ""); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("of a damaged group, a reader gets %v", err)
		}
	})
}

func TestABatchAsTar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb(t, hash(4), gateway.Config{}, "a", "b")
		var ids, want []string
		for id := range int64(300) {
			at := (id * 7919) % 300
			ids = append(ids, []string{fmt.Sprint(at), fmt.Sprintf("%q", fmt.Sprint(at))}[id%2])
			if at%50 == 3 {
				continue // is not there
			}
			w.put("", at, strings.Repeat("y", int(at)*11))
			key := fmt.Sprintf("%d/%d", hash(4).Routing.GroupOf(at), at)
			want = append(want, key+".json", key+".bin")
		}
		w.large(2000)
		want = append(want, "FAILURES")
		body := `{"ids": [` + strings.Join(ids, ",") + `]}`
		r := w.ask("POST", "/v1/batch.tar", body)
		names, data, err := members(r.Body)
		if err != nil || !slices.Equal(names, want) {
			t.Fatalf("%s, %v, %d members instead of %d", r.Status, err, len(names), len(want))
		}
		failures := strings.Split(strings.TrimSpace(data["FAILURES"]), "\n")
		if len(failures) != 6 || !strings.Contains(failures[0], `"reason":"RECORD_NOT_FOUND"`) {
			t.Errorf("%d failures: %s", len(failures), data["FAILURES"])
		}
		both := w.ask("POST", "/v1/batch.tar", `{"ids":[-9223372036854775808,9223372036854775807,1,1],"group":null}`)
		names, data, err = members(both.Body)
		if err != nil || len(names) != 5 || strings.Count(data["FAILURES"], "\n") != 2 ||
			!strings.Contains(data["FAILURES"], `"id":"9223372036854775807"`) {
			t.Errorf("%v, %v, %v", err, names, data["FAILURES"])
		}
		for body, status := range map[string]int{
			"": 400, "{}": 400, `{"ids":[]}`: 400, `{"ids":[1.5]}`: 400, `{"ids":["x"]}`: 400, `{"ids":[1]} x`: 400,
			`{"ids":[1],"ids":[2]}`: 400, `{"ids":[9223372036854775808]}`: 400, `{"ids":[1],"view":"v"}`: 404,
			`{"ids":[null]}`: 400, `{"ids":{}}`: 400, `{"id":[1]}`: 400, `{"ids":[1],"group":"../x"}`: 400, `{"ids":[1`: 400,
			`{"ids":[1` + strings.Repeat(",1", 100_000) + "]}":    413,
			`{"ids":[1` + strings.Repeat(",1", 10_000_000) + "]}": 413,
			`{"group":"` + strings.Repeat("g", 9<<20) + `"}`:      413,
		} {
			if r := w.ask("POST", "/v1/batch.tar", body); r.StatusCode != status {
				t.Errorf("%.40s: %s instead of %d: %s", body, r.Status, status, w.text(r))
			}
		}
	})
}

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
			r, err := http.ReadResponse(answers, nil)
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
				if r := w.ask("GET", "/v1/records/0/25", ""); r.StatusCode != 404 {
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

// A caller that hangs up ends the call at the shard, and the stop of a gateway does not wait for one that takes nothing.
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
