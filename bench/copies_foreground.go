package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/internal/placement"
)

const (
	foregroundGroups  = 8
	foregroundCallers = 8
	foregroundBytes   = 4 << 10
	// foregroundPause is between two calls of a caller: a machine that is busy to its limit shows how it queues, not
	// what a move costs.
	foregroundPause = 4 * time.Millisecond
	// foregroundRate is the --fetch-rate of the shards.
	foregroundRate = 32 << 20
)

// foreground compares the p99 of puts and gets while groups move with that of the same time before.
func (b *copiesBench) foreground(ctx context.Context) error {
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
	var before, during [2][]float64 // p99 of puts, gets
	var took []float64
	for round := range b.opts.Rounds {
		for i, out := range []*[2][]float64{&before, &during} {
			moved := make(chan error, 1)
			var over atomic.Bool
			begin := time.Now()
			go func() {
				defer over.Store(true)
				if i == 0 {
					time.Sleep(b.opts.Time)
					moved <- nil
					return
				}
				moved <- s.turn(ctx, round)
			}()
			puts, gets, err := s.disturbed(ctx, records, &over)
			if err := errors.Join(err, <-moved); err != nil {
				return err
			}
			if i == 1 {
				took = append(took, time.Since(begin).Seconds())
			}
			out[0], out[1] = append(out[0], puts), append(out[1], gets)
		}
		b.opts.Say("  round %d of %d", round+1, b.opts.Rounds)
	}
	moved := b.opts.MoveBytes / 2
	name := fmt.Sprintf("while %d MB move at a rate of %d MiB/s / before", moved/1e6, foregroundRate>>20)
	b.add(
		atMost("p99 of puts of 4 KB "+name, "s", during[0], before[0], 1.5).
			WithNote(fmt.Sprintf("%d callers, a call each %v; half of %d groups change their shard", foregroundCallers, foregroundPause, foregroundGroups)),
		atMost("p99 of gets of 10 KB "+name, "s", during[1], before[1], 1.5),
		plain("time of these moves, from the target on", "s", took, 0),
	)
	return nil
}

// turn moves the even groups to the other shard, and waits until they are there.
func (s *benchStore) turn(ctx context.Context, round int) error {
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
		return fmt.Errorf("round %d: %w", round, err)
	}
	return s.settled(ctx)
}

// disturbed puts and gets at a steady pace until over, and gives the p99 of each.
func (s *benchStore) disturbed(ctx context.Context, records int64, over *atomic.Bool) (puts, gets float64, err error) {
	var put, get latencies
	data := randomBytes(foregroundBytes)
	err = parallel(foregroundCallers, func(worker int) error {
		for i := int64(worker) << 32; !over.Load(); i++ {
			begin := time.Now()
			if worker%2 == 0 {
				if err := s.put(ctx, records+scatter(i)%records, data); err != nil {
					return err
				}
				put.add(time.Since(begin))
			} else {
				if err := s.get(ctx, scatter(i)%records, moveRecordBytes); err != nil {
					return err
				}
				get.add(time.Since(begin))
			}
			time.Sleep(foregroundPause)
		}
		return nil
	})
	return put.at(0.99), get.at(0.99), err
}
