package answer

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/storage/group"
)

// ViewExpired returns the error for a read of a view that can no longer be read from any copy.
func ViewExpired(id uuid.UUID, format string, args ...any) *Error {
	return Fail(codes.OutOfRange, reason.ViewExpired, "view %s: %s: open another view", id, fmt.Sprintf(format, args...)).
		with(map[string]string{"view": id.String()})
}

// ViewNotYet returns the error for a read of a view that the shard cannot answer yet.
func ViewNotYet(id uuid.UUID, format string, args ...any) *Error {
	return Fail(codes.Unavailable, reason.GroupLoading, "view %s: %s", id, fmt.Sprintf(format, args...)).
		after(200 * time.Millisecond)
}

// OfView translates the error of a read of a view. The error of a copy that lacks what the view needs names the shard,
// because another copy may answer.
func OfView(err error, id uuid.UUID, shard string, w Where) error {
	switch {
	case errors.Is(err, group.ErrNotApplied):
		return ViewNotYet(id, "shard %s has not applied its index of group %s: %v", shard, w.Group, err)
	case errors.Is(err, group.ErrHistoryGone), errors.Is(err, group.ErrPastTooFar):
		e := ViewExpired(id, "shard %s cannot answer for group %s: %v", shard, w.Group, err)
		e.Metadata["shard"] = shard
		return e
	}
	return Of(err, w)
}
