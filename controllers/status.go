package controllers

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// WriteStatus writes the status of an object where it differs from what was read. before is the object as it was read.
func WriteStatus(ctx context.Context, c client.Client, before, after client.Object) (changed bool, err error) {
	if equality.Semantic.DeepEqual(before, after) {
		return false, nil
	}
	if err := c.Status().Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(managerOfStatus)); err != nil {
		return false, fmt.Errorf("write status of %s: %w", client.ObjectKeyFromObject(after), err)
	}
	return true, nil
}
