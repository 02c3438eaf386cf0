package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/rounds"
)

// durablePuts compares durable puts with raw appends followed by fdatasync.
func (b *loadBench) durablePuts(ctx context.Context) (err error) {
	const writers, size = 64, 10 << 10
	dir := filepath.Join(b.dir, "put")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	stores := map[int]*benchNodes{}
	defer func() {
		for _, s := range stores {
			err = errors.Join(err, s.close())
		}
	}()
	for _, groups := range []int{1, 16, 64} {
		s, err := newNodes(ctx, filepath.Join(dir, strconv.Itoa(groups)), 1, groups, nil)
		if err != nil {
			return err
		}
		stores[groups] = s
	}
	bytes := func(one drive.Load, err error) (float64, error) { return size * one.PerSecond, err }
	ours := func(groups int) figure {
		return func() (float64, error) { return bytes(stores[groups].put(ctx, writers, size, b.opts.PutTime)) }
	}
	raw := func(mode appendMode) figure {
		return func() (float64, error) { return bytes(rawAppend(dir, mode, writers, size, b.opts.PutTime)) }
	}
	got, err := b.takeTurns(ctx,
		rounds.One("own files", raw(ownFiles)),
		rounds.One("one group", ours(1)),
		rounds.One("one file", raw(groupOfOne)),
		rounds.One("16 groups", ours(16)),
		rounds.One("64 groups", ours(64)),
	)
	if err != nil {
		return err
	}
	cost := func(rates []float64) []float64 { // converts rates to seconds per GB
		seconds := make([]float64, len(rates))
		for i, r := range rates {
			seconds[i] = 1e9 / r
		}
		return seconds
	}
	name := fmt.Sprintf("durable put of 10 KB, %d writers, ", writers)
	b.add(
		got.against(name+"16 groups / raw, own files", "B/s", "16 groups", "own files", 0.8).
			WithNote("raw: each writer appends to a file of its own and calls fdatasync"),
		got.against(name+"one group / raw, own files", "B/s", "one group", "own files", 0.8),
		got.against(name+"one group / raw, one file", "B/s", "one group", "one file", 0.8).
			WithNote("raw: all append to one file, one fdatasync serves all that wait: the least that a group commit can be"),
		atMost("cost of 64 dirty groups / of one, seconds per GB", "s",
			cost(got.Rate("64 groups")), cost(got.Rate("one group")), 2),
	)
	return nil
}
