package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/placement"
)

const (
	foregroundGroups  = 8
	foregroundCallers = 8
	foregroundBytes   = 4 << 10
	// foregroundPause is the pause between two calls by a caller. Without it, the callers would saturate the machine, and
	// the results would show queueing delays and not the cost of a move.
	foregroundPause = 4 * time.Millisecond
	// foregroundRate is the value of the shards' flag --fetch-rate, in bytes per second.
	foregroundRate = 32 << 20
)

// measureForeground measures the p99 of puts and gets before and during moves of groups, and compares the two.
func (b *copiesBench) measureForeground(ctx context.Context) error {
	dir, err := b.folder("foreground")
	if err != nil {
		return err
	}
	s, err := startStore(ctx, dir, b.opts.Binary, 2, 1, foregroundGroups, "--fetch-rate", fmt.Sprint(foregroundRate))
	if err != nil {
		return err
	}
	defer s.close()
	records := b.opts.MoveBytes / moveRecordBytes
	if err := s.fill(ctx, records, moveRecordBytes); err != nil {
		return err
	}
	// disturbed creates a cell that measures calls while meanwhile() runs. Against has the cell's own key, so that the
	// cell takes turns with no other cell. The cells therefore keep their order, and "before" is always measured before
	// "during".
	disturbed := func(key string, meanwhile func() error) rounds.Cell {
		return rounds.Cell{Key: key, Against: key, Run: func(ctx context.Context, f *rounds.Figures) error {
			moved := make(chan error, 1)
			var over atomic.Bool
			begin := time.Now()
			go func() {
				defer over.Store(true)
				moved <- meanwhile()
			}()
			puts, gets, err := s.measureDuring(ctx, records, &over)
			if err := errors.Join(err, <-moved); err != nil {
				return err
			}
			f.Set("puts", puts)
			f.Set("gets", gets)
			f.Set("seconds", time.Since(begin).Seconds())
			return nil
		}}
	}
	got, err := b.takeTurns(ctx,
		disturbed("before", func() error {
			time.Sleep(b.opts.Time)
			return nil
		}),
		disturbed("during", func() error { return s.moveEvenGroups(ctx) }),
	)
	if err != nil {
		return err
	}
	moved := b.opts.MoveBytes / 2
	name := fmt.Sprintf("while %d MB move at a rate of %d MiB/s / before", moved/1e6, foregroundRate>>20)
	b.add(
		got.atMost("p99 of puts of 4 KB "+name, "s", "puts", "during", "before", 1.5).
			WithNote(fmt.Sprintf("%d callers, a call each %v; half of %d groups change their shard",
				foregroundCallers, foregroundPause, foregroundGroups)),
		got.atMost("p99 of gets of 10 KB "+name, "s", "gets", "during", "before", 1.5),
		plain("time of these moves, from the target on", "s", got.Of("during", "seconds"), 0),
	)
	return nil
}

// moveEvenGroups moves every group with an even number to the other shard, and waits until the moves are done.
func (s *benchStore) moveEvenGroups(ctx context.Context) error {
	view, err := s.place.View(ctx)
	if err != nil {
		return err
	}
	var targets []placement.Target
	for i := 0; i < s.groups; i += 2 {
		t := view.Targets[placement.GroupName(i)]
		t.Shards = []string{map[string]string{"1": "2", "2": "1"}[t.Shards[0]]}
		targets = append(targets, t)
	}
	if err := s.place.SetTargets(ctx, targets); err != nil {
		return fmt.Errorf("moving groups: %w", err)
	}
	return s.awaitSettled(ctx)
}

// measureDuring writes and reads records at a steady pace until its caller sets the argument over to true. It returns
// the p99 of the writes and the p99 of the reads.
func (s *benchStore) measureDuring(ctx context.Context, records int64, over *atomic.Bool) (
	puts, gets float64, err error,
) {
	var put, get drive.Latencies
	data := randomBytes(foregroundBytes)
	err = drive.Parallel(foregroundCallers, func(worker int) error {
		for i := int64(worker) << 32; !over.Load(); i++ {
			begin := time.Now()
			if worker%2 == 0 {
				if err := s.put(ctx, records+drive.Scatter(i)%records, data); err != nil {
					return err
				}
				put.Add(time.Since(begin))
			} else {
				if err := s.get(ctx, drive.Scatter(i)%records, moveRecordBytes); err != nil {
					return err
				}
				get.Add(time.Since(begin))
			}
			time.Sleep(foregroundPause)
		}
		return nil
	})
	return put.At(0.99), get.At(0.99), err
}
