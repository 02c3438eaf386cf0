package storetest

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/test/must"
)

// The Go client opens views and reads them, through gateways and directly at shards.
func TestTheClientReadsViews(t *testing.T) { synctest.Test(t, theClientReadsViews) }

func theClientReadsViews(t *testing.T) {
	v := newViewed(t, Config{Groups: 2, Shards: 3, Copies: 3})
	v.write(0, 50, 8)
	view, err := v.c.OpenView(v.ctx, nil, time.Hour)
	must.OK(t, err)
	if !slices.Equal(view.Groups, []string{"0", "1"}) || len(view.Lost) > 0 || time.Until(view.Expires) > time.Hour {
		t.Errorf("%+v", view)
	}
	model := v.model()
	v.write(0, 60, 1)
	for _, direct := range []bool{false, true} {
		c := v.Client(t, client.Config{Direct: direct})
		one, err := c.Get(v.ctx, client.Key{ID: 5}, &client.GetOptions{View: view.ID})
		if err != nil || string(one.Data) != string(model[5]) {
			t.Errorf("Get: %.30q, %v", one.Data, err)
		}
		for _, outcome := range c.BatchGet(v.ctx, []client.GetItem{{Key: client.Key{ID: 1}, Options: client.GetOptions{
			View: view.ID}}}) {
			if outcome.Err != nil || string(outcome.Record.Data) != string(model[1]) {
				t.Errorf("BatchGet: %.30q, %v", outcome.Record.Data, outcome.Err)
			}
		}
		for _, parallel := range []int{0, 2} {
			n := 0
			for r, err := range c.Scan(v.ctx, &client.ScanOptions{View: view.ID, Parallel: parallel}) {
				must.OK(t, err)
				if n++; string(r.Data) != string(model[r.Key.ID]) {
					t.Errorf("Scan: record %d is %.30q", r.Key.ID, r.Data)
				}
			}
			if n != len(model) {
				t.Errorf("a scan has %d of %d records", n, len(model))
			}
		}
		_, err = c.Get(v.ctx, client.Key{ID: 1}, &client.GetOptions{View: "6ba7b810-9dad-11d1-80b4-00c04fd430c8"})
		if !errors.Is(err, client.ErrViewExpired) {
			t.Error(err)
		}
	}
	_, err = v.c.RenewView(v.ctx, view.ID, 2*time.Hour)
	must.OK(t, err)
	all, err := v.c.Views(v.ctx)
	if err != nil || len(all) != 1 || time.Until(all[0].Expires) <= time.Hour {
		t.Errorf("%+v, %v", all, err)
	}
	must.OK(t, v.c.CloseView(v.ctx, view.ID))
	must.OK(t, v.c.CloseView(v.ctx, view.ID))
	if _, err := v.c.PlanScan(v.ctx, &client.PlanScanOptions{View: view.ID}); !errors.Is(err, client.ErrViewExpired) {
		t.Error(err)
	}
}
