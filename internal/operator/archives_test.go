package operator

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/status/archiving"
)

func TestReportsOfArchivers(t *testing.T) {
	answer, code := "", http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != archiving.Path {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	answer = `{"state":"archiving","groups":3,"lagSeconds":1.5}`
	r, err := NewArchives().Report(t.Context(), address)
	if err != nil || r.State != archiving.Archiving || r.Groups != 3 || *r.LagSeconds != 1.5 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, answer = range []string{"", "{}", "[]"} { // another program at this address might answer in this way
		if r, err := NewArchives().Report(t.Context(), address); err == nil {
			t.Errorf("%q is taken for %+v", answer, r)
		}
	}
	answer, code = `{"state":"archiving"}`, http.StatusInternalServerError
	if r, err := NewArchives().Report(t.Context(), address); err == nil {
		t.Errorf("an error is taken for %+v", r)
	}
}
