// Package parallel processes many items, several at a time. Its callers must handle the errors of single items.
package parallel

import (
	"iter"

	"golang.org/x/sync/errgroup"
)

// Each calls do for all items, at most `most` at a time. It returns when all calls have returned.
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
