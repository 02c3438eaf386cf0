package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/status/archiving"
	"sheaf.dev/sheaf/internal/test/archivetest"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// A source takes the name of a point of the archive in place of a time.
func TestASourceOfAPoint(t *testing.T) {
	url := archiveOfTests(t)
	if code, _, errs := runArchive(t, "point", "create", url, "before-upgrade"); code != 0 {
		t.Fatalf("%d, %s", code, errs)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--point", "before-upgrade"}, 0, "can be restored"},
		{[]string{"--point", "none"}, 3, `no point "none"`},
		{[]string{"--point", "No point"}, 1, "name of a point"},
		{[]string{"--point", "before-upgrade", "--time", "2026-11-01T12:00:00Z"}, 2, "exclude each other"},
	} {
		code, out, errs := runArchive(t, append([]string{"source", url, "--into", newStore, "--dry-run"}, c.args...)...)
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%q: %d, %q, %q; must say %q", c.args, code, out, errs, c.says)
		}
	}
}

// A source reports at --http what it serves. The test uses real sockets because it runs the whole command.
func TestASourceReportsWhatItServes(t *testing.T) {
	url, address := archiveOfTests(t), loopback.Free(t)
	early := archivetest.Begin.Add(3 * time.Second) // at this time, two groups cannot be restored
	ctx, stop := context.WithCancel(t.Context())
	var errs bytes.Buffer
	ended := make(chan int)
	go func() {
		ended <- run(ctx, &bytes.Buffer{}, &errs, []string{"source", url, "--into", newStore, "--listen", "127.0.0.1:0",
			"--http", address, "--time", early.Format(time.RFC3339)})
	}()
	var r archiving.SourceReport
	for r.State != archiving.Serving && ctx.Err() == nil {
		if code, text := get(t, address, archiving.Path); code != 0 {
			if err := json.Unmarshal([]byte(text), &r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r.Store != newStore || r.Time == nil || !r.Time.Equal(early) || r.Routing != "named" || r.Groups == 0 ||
		r.RefusedGroups != 2 || len(r.Refused) != 2 || !strings.Contains(r.Refused[0].Error, "history floor") {
		t.Errorf("%+v", r)
	}
	for page, says := range map[string]string{"/readyz": "ok", "/healthz": "ok", "/metrics": "sheaf_build_info"} {
		if code, text := get(t, address, page); code != 200 || !strings.Contains(text, says) {
			t.Errorf("%s: %d, %s", page, code, text)
		}
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("%d, %s", code, errs.String())
	}
}

// A report names only the first groups that cannot be restored, but counts all of them.
func TestTheReportOfASourceIsShort(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	w.Log(w.NewGroup("there", 1))
	p := &object.Point{}
	for n := range archiving.RefusedMax + 5 {
		p.Groups = append(p.Groups, object.PointGroup{Group: uuid.UUID{1, byte(n)}, Name: fmt.Sprintf("g%02d", n)})
	}
	a, err := reader.Open(t.Context(), b, w.Store, nil)
	if err != nil {
		t.Fatal(err)
	}
	into := uuid.MustParse(newStore)
	r, err := restore.NewAtPoint(t.Context(), a, into, p)
	if err != nil {
		t.Fatal(err)
	}
	page := newSourcePage(into)
	if got := page.now(); got.State != archiving.Starting || got.Store != newStore {
		t.Errorf("at the start: %+v", got)
	}
	page.serves(r, time.Unix(0, p.Time))
	if got := page.now(); got.RefusedGroups != archiving.RefusedMax+5 || len(got.Refused) != archiving.RefusedMax ||
		got.Refused[0].Group != "g00" || got.Groups != got.RefusedGroups {
		t.Errorf("%+v, %v", got, errors.Join(err))
	}
}
