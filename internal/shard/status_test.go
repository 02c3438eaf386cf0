package shard

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/status"
	"sheaf.dev/sheaf/internal/status/page"
)

// The page reads only /status, so everything that it shows is there.
func TestTheStatusSaysTheStateInASentence(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		told := func() (st status.Shard) {
			t.Helper()
			answer := httptest.NewRecorder()
			handlerOf(f.shard).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/status", nil))
			if err := json.Unmarshal(answer.Body.Bytes(), &st); err != nil || answer.Code != http.StatusOK {
				t.Fatalf("/status: %d, %v", answer.Code, err)
			}
			return st
		}
		if s := told().Summary; s != (page.Summary{State: page.Ready, Text: "Ready: 4 groups here serve"}) {
			t.Errorf("all well: %+v", s)
		}
		f.registry.mu.Lock()
		f.registry.silent = 12 * time.Second
		f.registry.mu.Unlock()
		if st := told(); st.EtcdSilentSeconds < 12 || st.EtcdSilentSeconds > 100 || st.Summary.State != page.Problems ||
			!strings.HasPrefix(st.Summary.Text, "Without etcd for 12 s") {
			t.Errorf("without etcd: %+v, %v s", st.Summary, st.EtcdSilentSeconds)
		}
		f.registry.mu.Lock()
		f.registry.silent = 0
		f.registry.mu.Unlock()
		f.registry.change(func(v *placement.View) { v.States = map[string]placement.ShardState{"s1": placement.Draining} })
		f.eventually("it is said that the shard is emptied", func() bool {
			return told().Summary.Text == "Ready: 4 groups here serve; the shard is being emptied"
		})
		f.shard.stopping.Store(true)
		if s := told().Summary; s.State != page.NotReady || !strings.Contains(s.Text, "is stopping") {
			t.Errorf("stopping: %+v", s)
		}
		f.shard.stopping.Store(false)
	})
}
