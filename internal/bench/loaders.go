package bench

import (
	"math"

	"sheaf.dev/sheaf/internal/group"
)

// loaders gives the reader that the groups of a dataset share.
type loaders struct{ keeps *group.Loader }

func newLoaders() *loaders {
	return &loaders{keeps: group.NewLoader(group.LoaderOptions{KeepBytes: math.MaxInt64})}
}

// fresh takes memory from the system.
func (l *loaders) fresh() *group.Loader { return group.NewLoader(group.LoaderOptions{}) }

// touched takes memory that an earlier load left.
func (l *loaders) touched() *group.Loader { return l.keeps }

func (l *loaders) close() { l.keeps.Close() }
