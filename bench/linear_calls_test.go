package bench

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/test/must"
)

// TestStoreFilledWhileStoppedServesAll checks a shortcut that linearCalls takes: it writes records directly into the
// logs of a stopped store. When the store runs again, it must serve each record from the group that owns the id, and
// accept a new version of each record.
func TestStoreFilledWhileStoppedServesAll(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const records = 1000
	s, err := startFilled(ctx, t.TempDir(), records)
	must.OK(t, err)
	defer s.close()
	for id := range int64(records) {
		if err := getOne(ctx, s, id); err != nil {
			t.Fatalf("record %d: %v", id, err)
		}
	}
	if err := getOne(ctx, s, records); status.Code(err) != codes.NotFound {
		t.Fatalf("record %d, which was not written: %v, want NOT_FOUND", records, err)
	}
	for id := range int64(100) {
		if err := putOne(ctx, s, id); err != nil {
			t.Fatalf("writing record %d again: %v", id, err)
		}
	}
}
