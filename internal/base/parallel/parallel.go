// Package parallel does many things, some at a time. What goes wrong with one, its caller keeps.
package parallel

import (
	"iter"

	"golang.org/x/sync/errgroup"
)

// Each does something with all items, at most so many at a time, and returns when it is done with all.
func Each[T any](items iter.Seq[T], most int, do func(T)) {
	var all errgroup.Group
	all.SetLimit(most)
	for item := range items {
		all.Go(func() error {
			do(item)
			return nil
		})
	}
	_ = all.Wait() // no error is returned above
}

// Times is Each of the numbers from 0 to n-1.
func Times(n, most int, do func(i int)) {
	Each(func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}, most, do)
}
