package bench

import (
	"context"
	"os"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
)

// CopiesOptions are the options of Copies.
type CopiesOptions struct {
	Options          // the device that holds Options.Dir stores all copies
	Binary    string // path of the sheaf program, which runs the etcd members and the shards that are killed
	Time      time.Duration
	MoveBytes int64 // size of the group that the move part moves
	TLS       bool  // run only the parts put and move, and compare mutual TLS between shards with plaintext
	Kills     int   // number of times that a leader is killed
	Groups    int   // number of quiescent groups
}

// copiesParts are the parts of the benchmark, in order.
var copiesParts = parts[copiesBench]{
	{"put", (*copiesBench).measurePuts},
	{"move", (*copiesBench).measureMoves},
	{"foreground", (*copiesBench).measureForeground},
	{"read", (*copiesBench).measureReads},
	{"etcd", (*copiesBench).compareEtcd},
	{"failover", (*copiesBench).measureFailover},
	{"quiet", (*copiesBench).measureQuiet},
}

// CopiesParts returns the names of the parts.
func CopiesParts() []string { return copiesParts.names() }

// CopiesPartsTLS returns the names of the parts that can run with CopiesOptions.TLS. These parts measure only the
// streams between shards, without a complete store.
func CopiesPartsTLS() []string { return copiesPartsTLS.names() }

var copiesPartsTLS = copiesParts[:2]

type copiesBench struct {
	opts CopiesOptions
	outcome
}

// Copies measures what it costs to keep copies on several shards, and how soon calls succeed again after a shard is
// killed.
func Copies(ctx context.Context, opts CopiesOptions) (*result.Report, error) {
	b := &copiesBench{opts: opts, outcome: outcome{Options: opts.Options}}
	chosen := copiesParts
	if opts.TLS {
		chosen = copiesPartsTLS
	}
	return chosen.measure(ctx, b, &b.outcome, "copies")
}

// folder creates a folder for one part. The folder is removed when the benchmark finishes.
func (b *copiesBench) folder(name string) (string, error) { return os.MkdirTemp(b.dir, name+"-") }

// loadCell creates a cell with two metrics of the calls that run() makes: the calls per second and the p99.
func loadCell(key string, run func() (drive.Load, error)) rounds.Cell {
	return rounds.Cell{Key: key, Run: func(_ context.Context, f *rounds.Figures) error {
		one, err := run()
		f.Set(rounds.Rate, one.PerSecond)
		f.Set(p99, one.P99)
		return err
	}}
}

// p99 is the key of the metric that holds the 99th percentile.
const p99 = "p99"

func times(v []float64, by float64) []float64 {
	out := make([]float64, len(v))
	for i := range v {
		out[i] = by * v[i]
	}
	return out
}
