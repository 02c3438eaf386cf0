package shard

import (
	"iter"

	"golang.org/x/sync/errgroup"
)

// each does something with all items, so many at a time.
func each[T any](items iter.Seq[T], atOnce int, do func(T)) {
	var all errgroup.Group
	all.SetLimit(atOnce)
	for item := range items {
		all.Go(func() error {
			do(item)
			return nil
		})
	}
	_ = all.Wait()
}
