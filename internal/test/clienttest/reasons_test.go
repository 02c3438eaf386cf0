package clienttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/storetest"
)

// For every reason that record.proto lists, package client has an error. So no caller has to compare messages.
func TestEveryReasonHasAnError(t *testing.T) {
	known := []error{
		client.ErrNotFound, client.ErrGroupNotFound, client.ErrVersionNotFound, client.ErrVersionMismatch, client.ErrExists,
		client.ErrInvalid,
		client.ErrTooLarge, client.ErrDiskFull, client.ErrOverloaded, client.ErrMemoryFull, client.ErrGroupLimit,
		client.ErrHashRouting, client.ErrGroupNotEmpty,
		client.ErrUnavailable, client.ErrGroupFailed, client.ErrOutcomeUnknown, client.ErrRequestIDReused, client.ErrDataLoss,
		client.ErrCursorExpired, client.ErrViewExpired,
		client.ErrBadRange, client.ErrQuotaExceeded,
	}
	content, err := os.ReadFile("../../../api/sheaf/record/v1/record.proto")
	must.OK(t, err)
	listed, _, _ := strings.Cut(string(content), "service RecordService")
	code, seen := codes.OK, 0
	for line := range strings.Lines(listed) {
		text, ok := strings.CutPrefix(line, "//   ")
		if !ok {
			continue
		}
		names := regexp.MustCompile(`\b[A-Z][A-Z_]{5,}\b`).FindAllString(text, -1)
		if len(names) > 0 && !strings.HasPrefix(text, " ") {
			if err := code.UnmarshalJSON([]byte(`"` + names[0] + `"`)); err != nil {
				t.Fatalf("%s: %v", names[0], err)
			}
			names = names[1:]
		}
		for _, reason := range names {
			e := &client.Error{Code: code, Reason: reason}
			is := 0
			for _, k := range known {
				if errors.Is(e, k) {
					is++
				}
			}
			if is == 0 {
				t.Errorf("%v %s is no error of the package", code, reason)
			}
			seen++
		}
	}
	if seen < 25 {
		t.Errorf("%d reasons were found in record.proto", seen)
	}
	for special, general := range map[error]error{
		client.ErrGroupNotFound: client.ErrNotFound, client.ErrVersionNotFound: client.ErrNotFound,
		client.ErrMemoryFull: client.ErrOverloaded, client.ErrGroupLimit: client.ErrOverloaded,
	} {
		for _, e := range []*client.Error{
			{Code: codes.NotFound, Reason: "GROUP_NOT_FOUND"}, {Code: codes.NotFound, Reason: "VERSION_NOT_FOUND"},
			{Code: codes.ResourceExhausted, Reason: "MEMORY_FULL"}, {Code: codes.ResourceExhausted, Reason: "GROUP_LIMIT"},
		} {
			if errors.Is(e, special) && !errors.Is(e, general) {
				t.Errorf("%s is %v and not %v", e.Reason, special, general)
			}
		}
	}
}

// The splits of a plan may be scanned by clients other than the one that made the plan. Together, the splits return
// each record exactly once.
func TestSplitsCanBeScannedByOtherClients(t *testing.T) {
	runBoth(t, storetest.Config{Shards: 2}, func(t *testing.T, s *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		const records = 100
		for id := range int64(records) {
			if _, err := c.Put(ctx, client.Key{ID: id}, []byte(fmt.Sprint(id)), nil); err != nil {
				t.Fatal(err)
			}
		}
		splits, err := c.PlanScan(ctx, nil)
		if err != nil || len(splits) < 4 {
			t.Fatalf("%d splits, %v", len(splits), err)
		}
		sent, err := json.Marshal(splits)
		must.OK(t, err)
		var came []client.Split
		must.OK(t, json.Unmarshal(sent, &came))
		other, seen := s.Client(t, client.Config{Direct: true}), map[int64]int{}
		for i := range came {
			if len(came[i].Addresses) == 0 || came[i].Group == "" {
				t.Errorf("split %+v", came[i])
			}
			for r, err := range other.Scan(ctx, &client.ScanOptions{Split: &came[i]}) {
				must.OK(t, err)
				if string(r.Data) != fmt.Sprint(r.Key.ID) {
					t.Errorf("record %d: %q", r.Key.ID, r.Data)
				}
				seen[r.Key.ID]++
			}
		}
		for id := range int64(records) {
			if seen[id] != 1 {
				t.Errorf("record %d came %d times", id, seen[id])
			}
		}
		if one, err := c.PlanScan(ctx, &client.PlanScanOptions{Groups: []string{"1"}}); err != nil || len(one) != 1 ||
			one[0].Group != "1" {
			t.Errorf("one group: %+v, %v", one, err)
		}
		for _, wrong := range []client.ScanOptions{{Split: &came[0], Group: "1"}, {Split: &came[0], Parallel: 2},
			{Split: &client.Split{}}, {Split: &came[0], Cursor: []byte("x")}} {
			if err := lastError(c.Scan(ctx, &wrong)); !errors.Is(err, client.ErrInvalid) {
				t.Errorf("%+v: %v", wrong, err)
			}
		}
	})
}
