package bench

import (
	"context"
	"os"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
)

// CopiesOptions of Copies.
type CopiesOptions struct {
	Options          // Dir: all copies are on its device
	Binary    string // sheaf: its processes are those that are killed, and etcd's members
	Time      time.Duration
	MoveBytes int64 // of a group that is moved
	TLS       bool  // only put and move, which then measure mutual TLS between shards in turns with plaintext
	Kills     int   // of a leader
	Groups    int   // that rest
}

// Parts of the benchmark, in order.
var copiesParts = parts[copiesBench]{
	{"put", (*copiesBench).puts},
	{"move", (*copiesBench).moves},
	{"foreground", (*copiesBench).foreground},
	{"read", (*copiesBench).reads},
	{"etcd", (*copiesBench).peer},
	{"failover", (*copiesBench).failover},
	{"quiet", (*copiesBench).quiet},
}

// CopiesParts names the parts.
func CopiesParts() []string { return copiesParts.names() }

// CopiesPartsTLS names the parts that CopiesOptions.TLS has: those in which a bare stream between shards is measured.
func CopiesPartsTLS() []string { return copiesPartsTLS.names() }

var copiesPartsTLS = copiesParts[:2]

type copiesBench struct {
	opts CopiesOptions
	outcome
}

// Copies measures what copies on several shards cost, and how soon others go on when a shard is killed.
func Copies(ctx context.Context, opts CopiesOptions) (*result.Report, error) {
	b := &copiesBench{opts: opts, outcome: outcome{Options: opts.Options}}
	chosen := copiesParts
	if opts.TLS {
		chosen = copiesPartsTLS
	}
	return chosen.measure(ctx, b, &b.outcome, "copies")
}

// folder makes a folder for one part. What is in it goes when the benchmark ends.
func (b *copiesBench) folder(name string) (string, error) { return os.MkdirTemp(b.dir, name+"-") }

// loadCell makes a cell that gives what callers do in a time: calls a second, and their p99.
func loadCell(key string, run func() (drive.Load, error)) rounds.Cell {
	return rounds.Cell{Key: key, Run: func(_ context.Context, f *rounds.Figures) error {
		one, err := run()
		f.Set(rounds.Rate, one.PerSecond)
		f.Set(p99, one.P99)
		return err
	}}
}

// p99 is the key of a figure.
const p99 = "p99"

func times(v []float64, by float64) []float64 {
	out := make([]float64, len(v))
	for i := range v {
		out[i] = by * v[i]
	}
	return out
}
