package shard

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/shard/answer"
)

// If a replica has failed and cannot write until it is restarted, the error is not NO_LEADER, because it would be
// useless for a caller to wait.
func TestAReplicaThatFailedIsReported(t *testing.T) {
	err := answer.Of(fmt.Errorf("%w: the segment cannot be synced", replica.ErrFailed), answer.Where{Group: "7", ID: 1})
	want(t, err, codes.FailedPrecondition, reason.GroupFailed)
	if metadataOf(err, "group") != "7" {
		t.Errorf("the group is not named: %v", err)
	}
	// If a write was in progress, it is more important to report that its outcome is unknown.
	err = answer.Of(fmt.Errorf("%w: %w", replica.ErrOutcomeUnknown, replica.ErrFailed), answer.Where{Group: "7", ID: 1})
	want(t, err, codes.Unknown, reason.OutcomeUnknown)
}
