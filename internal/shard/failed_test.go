package shard

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/shard/answer"
)

// The error of a replica that cannot write until it is restarted is not NO_LEADER, because callers should not wait
// for such a replica.
func TestAReplicaThatFailedIsReported(t *testing.T) {
	err := answer.Of(fmt.Errorf("%w: the segment cannot be synced", replica.ErrFailed), answer.Where{Group: "7", ID: 1})
	want(t, err, codes.FailedPrecondition, reason.GroupFailed)
	if metadataOf(err, "group") != "7" {
		t.Errorf("the group is not named: %v", err)
	}
	// If a write was in progress, its unknown outcome is more important.
	err = answer.Of(fmt.Errorf("%w: %w", replica.ErrOutcomeUnknown, replica.ErrFailed), answer.Where{Group: "7", ID: 1})
	want(t, err, codes.Unknown, reason.OutcomeUnknown)
}
