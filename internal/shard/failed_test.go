package shard

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/internal/replica"
)

// A replica that cannot write until a restart is not without a leader: nobody is to wait for it.
func TestAReplicaThatFailedIsTold(t *testing.T) {
	err := answerError(fmt.Errorf("%w: the segment cannot be synced", replica.ErrFailed), where{group: "7", id: 1})
	want(t, err, codes.FailedPrecondition, reasonGroupFailed)
	if metadataOf(err, "group") != "7" {
		t.Errorf("the group is not named: %v", err)
	}
	// Where a write was under way, its outcome says more.
	err = answerError(fmt.Errorf("%w: %w", replica.ErrOutcomeUnknown, replica.ErrFailed), where{group: "7", id: 1})
	want(t, err, codes.Unknown, reasonOutcomeUnknown)
}
