package operator

import (
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/placement"
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

func TestReportsOfSources(t *testing.T) {
	answer := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	answer = `{"state":"serving","store":"x","time":"2026-11-01T12:00:00.123456789Z","groups":3,"refusedGroups":1,
		"refused":[{"group":"a","error":"b"}]}`
	r, err := NewArchives().SourceReport(t.Context(), address)
	if err != nil || r.State != archiving.Serving || r.Groups != 3 || r.Time.Nanosecond() != 123456789 ||
		r.Refused[0].Group != "a" {
		t.Errorf("%+v, %v", r, err)
	}
	for _, answer = range []string{"", "{}", `{"state":"archiving"}`} { // the last one is that of an archiver
		if r, err := NewArchives().SourceReport(t.Context(), address); err == nil {
			t.Errorf("%q is taken for %+v", answer, r)
		}
	}
}

// A restored store is created as one whose groups are not listed yet, so that nobody creates a group before.
func TestARestoredStoreBeginsWithoutItsGroups(t *testing.T) {
	store := &v1alpha1.RecordStore{}
	store.Namespace, store.Name = "prod", "quotes"
	store.Status.StoreUID = "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b"
	store.Spec.Groups = v1alpha1.Groups{Routing: v1alpha1.RoutingHash, Count: new(int32(8))}
	if meta, err := metaOf(store, 3); err != nil || meta.Restore != nil {
		t.Errorf("a store without a restore: %+v, %v", meta, err)
	}
	store.Spec.Restore = &v1alpha1.Restore{Partly: true, First: []string{"7", "0"}}
	store.Status.Restore = &v1alpha1.RestoreStatus{Time: "2026-11-01T12:00:00.5Z"}
	meta, err := metaOf(store, 3)
	want := placement.Restore{Source: "quotes-restore.prod.svc:7640", Listing: true, At: "2026-11-01T12:00:00.5Z",
		Partly: true, First: []string{"7", "0"}}
	if err != nil || meta.Restore == nil || !reflect.DeepEqual(*meta.Restore, want) ||
		meta.StoreUUID.String() != store.Status.StoreUID {
		t.Errorf("%+v, %v", meta, err)
	}
}
