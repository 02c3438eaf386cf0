// Package parallel processes many items, several at a time. The function that processes an item must itself handle the
// item's errors.
package parallel

import (
	"iter"

	"golang.org/x/sync/errgroup"
)

// Each calls do for each item, with at most `most` calls at a time. It returns when all calls have returned.
func Each[T any](items iter.Seq[T], most int, do func(T)) {
	var all errgroup.Group
	all.SetLimit(most)
	for item := range items {
		all.Go(func() error {
			do(item)
			return nil
		})
	}
	_ = all.Wait() // the goroutines above return no errors
}

// Times is like Each for the numbers from 0 to n-1.
func Times(n, most int, do func(i int)) {
	Each(func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}, most, do)
}
