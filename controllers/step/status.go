package step

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// WriteStatus writes the status of an object if the status has changed. The argument before is the object as it was
// read.
func WriteStatus(ctx context.Context, c client.Client, before, after client.Object) (changed bool, err error) {
	if equality.Semantic.DeepEqual(before, after) {
		return false, nil
	}
	if err := c.Status().Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(ManagerOfStatus)); err != nil {
		return false, fmt.Errorf("write status of %s: %w", client.ObjectKeyFromObject(after), err)
	}
	return true, nil
}

// SayDeleting lists, in the conditions of an object that is being deleted, the finalizers for which it still waits. It
// is for an object for which the operator has nothing left to do. It writes nothing if the object no longer exists.
func SayDeleting[T client.Object](ctx context.Context, c client.Client, object T,
	conditions func(T) *[]metav1.Condition) error {
	others := object.GetFinalizers()
	if len(others) == 0 {
		return nil
	}
	before := object.DeepCopyObject().(T)
	Summarize(conditions(object), object.GetGeneration(), Wait("Deleting",
		"it is being deleted, and waits for the owners of its finalizers: "+strings.Join(others, ", "), 0), "")
	_, err := WriteStatus(ctx, c, before, object)
	return client.IgnoreNotFound(err)
}

// ManagerOfStatus is the field manager that writes the status of pools and shards.
const ManagerOfStatus = "sheaf-operator-status"

// PauseNumbers is the minimum time between two writes of a status in which only numbers have changed.
const PauseNumbers = 30 * time.Second

// WriteDue reports whether a status has to be written. If more than numbers has changed, it is written immediately. If
// only numbers have changed, it is written once PauseNumbers has passed since the last write. The function told returns
// a status without the numbers that change frequently.
func WriteDue[T any](before, after T, told func(T) T, sinceWrite time.Duration) bool {
	switch {
	case equality.Semantic.DeepEqual(before, after):
		return false
	case !equality.Semantic.DeepEqual(told(before), told(after)):
		return true
	}
	return sinceWrite >= PauseNumbers
}
