package gateway_test

import (
	"archive/tar"
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

// webReply is an answer whose body is closed when the test ends.
type webReply struct{ *http.Response }

// ask makes a request. Headers are pairs of names and values.
func (w *webClient) ask(method, path, body string, headers ...string) webReply {
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
	return webReply{answer}
}

// text returns the whole body.
func (w *webClient) text(r webReply) string {
	w.t.Helper()
	body, err := io.ReadAll(r.Body)
	must.OK(w.t, err)
	_ = r.Body.Close()
	return string(body)
}

func (w *webClient) put(group string, id int64, data string) {
	w.t.Helper()
	_, err := w.records.Put(w.ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Group: group, Id: id},
		Data: []byte(data)})
	must.OK(w.t, err)
}

func TestARecordOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeb(t, hash(1), gateway.Config{}, "a")
		w.put("", 7, "hello")
		w.put("", math.MinInt64, "least")
		w.put("", math.MaxInt64, "most")
		w.put("", 8, "")
		for name, c := range webRequests {
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
		behind := w.ask("GET", "/v1/records/0/7", "", "Range", "bytes=1000000-")
		if behind.StatusCode != http.StatusRequestedRangeNotSatisfiable {
			t.Error(behind.Status)
		}
		// A record that is replaced before its first byte is read anew.
		replaced := w.shards["a"].failFirst(1, "Download", refuse(codes.NotFound, "VERSION_NOT_FOUND"))
		anew := w.ask("GET", "/v1/records/0/7", "")
		if got := w.text(anew); got != data || *replaced != 1 {
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
						if err != nil || r.StatusCode != http.StatusOK || len(names)%2 != 0 {
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
	if !errors.Is(err, io.ErrUnexpectedEOF) || r.StatusCode != http.StatusOK {
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
			`{"ids":[1],"ids":[2]}`: 400, `{"ids":[9223372036854775808]}`: 400, `{"ids":[1],"view":"v"}`: 400,
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
