package bench

import (
	"math"

	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// loaders provides a loader for all groups of a dataset. The loader uses either new memory or the memory of an
// earlier load.
type loaders struct{ keeps *segio.Loader }

func newLoaders() *loaders {
	return &loaders{keeps: segio.NewLoader(segio.LoaderOptions{KeepBytes: math.MaxInt64})}
}

// freshLoader returns a loader that takes memory from the system.
func (l *loaders) freshLoader() *segio.Loader { return segio.NewLoader(segio.LoaderOptions{}) }

// touchedLoader returns a loader that reuses the memory of an earlier load.
func (l *loaders) touchedLoader() *segio.Loader { return l.keeps }

func (l *loaders) close() { l.keeps.Close() }
