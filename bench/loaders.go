package bench

import (
	"math"

	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// loaders gives the reader that the groups of a dataset share.
type loaders struct{ keeps *segio.Loader }

func newLoaders() *loaders {
	return &loaders{keeps: segio.NewLoader(segio.LoaderOptions{KeepBytes: math.MaxInt64})}
}

// fresh takes memory from the system.
func (l *loaders) fresh() *segio.Loader { return segio.NewLoader(segio.LoaderOptions{}) }

// touched takes memory that an earlier load left.
func (l *loaders) touched() *segio.Loader { return l.keeps }

func (l *loaders) close() { l.keeps.Close() }
