package page

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/must"
)

func TestThePageIsAtTheRootOnly(t *testing.T) {
	mux := http.NewServeMux()
	Handle(mux)
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{http.MethodGet, "/", http.StatusOK}, {http.MethodHead, "/", http.StatusOK}, {http.MethodGet, "/?x=1", http.StatusOK},
		{http.MethodGet, "/favicon.ico", http.StatusNotFound}, {http.MethodGet, "/index.html", http.StatusNotFound},
		{http.MethodPost, "/", http.StatusMethodNotAllowed}, {http.MethodPut, "/", http.StatusMethodNotAllowed},
		{http.MethodDelete, "/", http.StatusMethodNotAllowed}, {http.MethodOptions, "/", http.StatusMethodNotAllowed},
	} {
		request, err := http.NewRequest(c.method, server.URL+c.path, nil)
		must.OK(t, err)
		answer, err := server.Client().Do(request)
		must.OK(t, err)
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != c.code {
			t.Errorf("%s %s: %d %v, wanted %d", c.method, c.path, answer.StatusCode, err, c.code)
		}
		h := answer.Header
		switch c.code {
		case http.StatusMethodNotAllowed:
			if allow := h.Get("Allow"); !strings.Contains(allow, "GET") || !strings.Contains(allow, "HEAD") {
				t.Errorf("%s %s: Allow is %q", c.method, c.path, allow)
			}
		case http.StatusOK:
			if c.method == http.MethodHead != (len(body) == 0) || answer.ContentLength != int64(len(html)) {
				t.Errorf("%s %s: %d bytes, a length of %d", c.method, c.path, len(body), answer.ContentLength)
			}
			for name, want := range map[string]string{
				"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache",
				"Referrer-Policy": "no-referrer",
			} {
				if h.Get(name) != want {
					t.Errorf("%s %s: %s is %q, wanted %q", c.method, c.path, name, h.Get(name), want)
				}
			}
			policy := h.Get("Content-Security-Policy")
			if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "unsafe") ||
				strings.Count(policy, "'sha256-") != 2 {
				t.Errorf("the policy is %q", policy)
			}
		}
	}
}

func TestPageIsSelfContained(t *testing.T) {
	if len(html) == 0 || len(html) > 32<<10 {
		t.Errorf("the page has %d bytes", len(html))
	}
	for _, bad := range []string{
		`https?:`, `//[a-z0-9-]+\.`, `\bsrc=`, `@import`, `url\(`, // the page must load nothing from other servers
		// Text from JSON must not become HTML.
		`innerHTML`, `outerHTML`, `insertAdjacentHTML`, `document\.write`, `\beval\b`, `\bsetHTML`,
		`\sstyle="`, `\son[a-z]+="`, // the content security policy would block these
	} {
		if found := regexp.MustCompile(bad).FindString(html); found != "" {
			t.Errorf("the page has %q", found)
		}
	}
	// The policy allows one style and one script element by hash, so the page may have only one of each.
	for _, element := range []string{"style", "script"} {
		if n := strings.Count(html, "<"+element); n != 1 || strings.Count(html, "<"+element+">") != 1 {
			t.Errorf("the page has %d elements %s", n, element)
		}
	}
}

func TestASentenceSaysWhatMatters(t *testing.T) {
	load := &recordv1.Load{GroupsLoaded: 5, GroupsTotal: 16, BytesDone: 42 << 30, BytesTotal: 100 << 30, EtaSeconds: 3.2}
	many := []string{"1", "2", "3", "4", "5", "6", "7"}
	for _, c := range []struct {
		name  string
		facts Facts
		state string
		text  string
		do    string // substring that the sentence must contain
	}{
		{"all well", Facts{Groups: 16, Shards: 3}, Ready, "Ready: 16 groups on 3 shards serve", ""},
		{"of one shard", Facts{Groups: 1}, Ready, "Ready: 1 group here serves", ""},
		{"of one of one", Facts{Groups: 1, Shards: 1}, Ready, "Ready: 1 group on 1 shard serves", ""},
		{"of a gateway", Facts{Groups: 2, Shards: 2, Routes: true}, Ready, "Ready: 2 groups on 2 shards have a route", ""},
		{"empty", Facts{}, Ready, "Ready: there are no groups yet", ""},
		{"being emptied", Facts{Groups: 2, And: "; it is emptied"}, Ready, "Ready: 2 groups here serve; it is emptied", ""},
		{"loading", Facts{Loading: true, Load: load}, Loading, "Loading: 5 of 16 groups, 42 %, 3 s left", ""},
		{"about to load", Facts{Loading: true}, Loading, "Loading: looking at what there is", ""},
		{"almost loaded", Facts{Loading: true, Load: &recordv1.Load{GroupsTotal: 1, EtaSeconds: .1}}, Loading,
			"Loading: 0 of 1 group, 1 s left", ""},
		{"loading without etcd", Facts{Loading: true, Load: load, EtcdSilent: time.Minute}, Loading,
			"Loading: 5 of 16 groups, 42 %, 3 s left", "etcd has not answered for 60 s"},
		{"waits, whatever else", Facts{Waits: "why", Loading: true, Load: load, Failed: many}, NotReady, "Not ready: why",
			""},
		{"failed", Facts{Groups: 16, Failed: many}, NotReady,
			"Not ready: 7 of 16 groups are not served: 1, 2, 3, 4, 5 and 2 more", "start the shards"},
		{"failed, and it says why", Facts{Groups: 3, Failed: []string{"a"}, FailedWhy: "Group a: its manifest is gone."},
			NotReady, "Not ready: 1 of 3 groups is not served: a", "Group a: its manifest is gone. The list"},
		{"failed, the only one", Facts{Groups: 1, Failed: many[:1]}, NotReady, "Not ready: 1 of 1 group is not served: 1",
			"start the shards"},
		{"failed and damaged", Facts{Groups: 2, Failed: []string{"a"}, Damaged: []string{"b"}}, NotReady,
			"Not ready: 1 of 2 groups is not served: a", "start the shards"},
		{"damaged", Facts{Groups: 2, Damaged: []string{"b"}, EtcdSilent: time.Hour}, Damaged,
			"Damaged: group b: some records answer DATA_LOSS, all others are served", "accept-loss b --yes"},
		{"two damaged", Facts{Groups: 2, Damaged: []string{"a", "b"}}, Damaged,
			"Damaged: groups a, b: some records answer DATA_LOSS, all others are served", "accept-loss GROUP"},
		{"long without etcd", Facts{Groups: 2, EtcdSilent: 3 * time.Hour}, Problems,
			"Without etcd for 180 min: what was served before is served; what starts, moves or is new waits", "Start etcd"},
		{"without etcd", Facts{Groups: 2, EtcdSilent: 12 * time.Second}, Problems,
			"Without etcd for 12 s: what was served before is served; what starts, moves or is new waits", "Start etcd"},
		{"etcd a moment ago", Facts{Groups: 2, EtcdSilent: EtcdSilentMin - 1}, Ready, "Ready: 2 groups here serve", ""},
		{"another etcd", Facts{Groups: 2, EtcdHeld: "it is empty"}, Problems, "What etcd says is not followed: it is empty",
			"before is served"},
		{"with a problem", Facts{Groups: 2, Problems: []string{"the disk is slow: see to it"}}, Problems,
			"Ready, with 1 problem: 2 groups here serve", "the disk is slow"},
	} {
		got := Summarize(&c.facts)
		if got.State != c.state || got.Text != c.text || !strings.Contains(got.Do, c.do) || c.do == "" && got.Do != "" {
			t.Errorf("%s: %+v, wanted %s %q ... %q", c.name, got, c.state, c.text, c.do)
		}
	}
}
