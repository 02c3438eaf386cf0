package step

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// WriteStatus writes the status of an object where it differs from what was read. before is the object as it was read.
func WriteStatus(ctx context.Context, c client.Client, before, after client.Object) (changed bool, err error) {
	if equality.Semantic.DeepEqual(before, after) {
		return false, nil
	}
	if err := c.Status().Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(ManagerOfStatus)); err != nil {
		return false, fmt.Errorf("write status of %s: %w", client.ObjectKeyFromObject(after), err)
	}
	return true, nil
}

// ManagerOfStatus writes the status of pools and shards.
const ManagerOfStatus = "sheaf-operator-status"

// PauseNumbers is at least between two writes of a status in which only numbers have moved.
const PauseNumbers = 30 * time.Second

// WriteDue says whether a status is to be written: at once where it tells something else than before, and where only
// numbers have moved when the last write is long enough ago. told leaves of a status what it tells, without the numbers
// that move by themselves.
func WriteDue[T any](before, after T, told func(T) T, sinceWrite time.Duration) bool {
	switch {
	case equality.Semantic.DeepEqual(before, after):
		return false
	case !equality.Semantic.DeepEqual(told(before), told(after)):
		return true
	}
	return sinceWrite >= PauseNumbers
}
