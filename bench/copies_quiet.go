package bench

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/client/call/backoff"
)

// measureQuiet measures the cost of idle groups: the time to create them, and the CPU time that they take. It measures
// the CPU time on all shards, and on the remaining shards while one shard is down.
func (b *copiesBench) measureQuiet(ctx context.Context) error {
	dir, err := b.folder("quiet")
	if err != nil {
		return err
	}
	begin := time.Now()
	s, err := startStore(ctx, dir, b.opts.Binary, 3, copiesOf, b.opts.Groups)
	if err != nil {
		return err
	}
	defer s.close()
	made := time.Since(begin).Seconds()
	b.Say("  %d groups x %d were made in %.1f s", b.opts.Groups, copiesOf, made)
	left := slices.Sorted(maps.Keys(s.shards))
	gone := left[len(left)-1]
	left = left[:len(left)-1]
	shares, before, err := b.measureIdle(ctx, s, left)
	if err != nil {
		return err
	}
	s.shards[gone].Kill()
	delete(s.shards, gone)
	if err := s.ledBy(ctx, left); err != nil {
		return err
	}
	_, after, err := b.measureIdle(ctx, s, left)
	if err != nil {
		return err
	}
	of := fmt.Sprintf("%d groups x %d that nobody uses", b.opts.Groups, copiesOf)
	b.add(
		plain(fmt.Sprintf("making %d groups x %d, from the start of 3 shards on", b.opts.Groups, copiesOf), "s",
			[]float64{made}, 0),
		plain(fmt.Sprintf("processor time of a shard with %s, percent of a core", of), "", shares, 2),
		atMost(fmt.Sprintf(
			"processor time of a shard with %s while one of three is gone, percent of a core, against the same shards before",
			of), "",
			after, before, 1.5).WithNote("kill -9 of one shard; measured once every group is led again"),
	)
	return nil
}

// measureIdle waits until all groups are quiescent. Then it measures in each round how much CPU time the shards use, as
// a percentage of one core. For each round it returns the average over all running shards, and the average over the
// shards that the argument named lists.
func (b *copiesBench) measureIdle(ctx context.Context, s *benchStore, named []string) (all, of []float64, err error) {
	// Groups become quiescent half a second after their last activity.
	if !backoff.Sleep(ctx, 2*time.Second+2*b.opts.Time) {
		return nil, nil, context.Cause(ctx)
	}
	for range b.Rounds {
		before, err := s.processorTimes()
		if err != nil {
			return nil, nil, err
		}
		from := time.Now()
		if !backoff.Sleep(ctx, 2*b.opts.Time) {
			return nil, nil, context.Cause(ctx)
		}
		after, err := s.processorTimes()
		if err != nil {
			return nil, nil, err
		}
		share := func(names []string) (percent float64) {
			for _, name := range names {
				percent += 100 * (after[name] - before[name]).Seconds() / time.Since(from).Seconds() / float64(len(names))
			}
			return percent
		}
		all, of = append(all, share(slices.Collect(maps.Keys(s.shards)))), append(of, share(named))
		b.Say("  %d shards take %.2f %% of a core each", len(s.shards), all[len(all)-1])
	}
	return all, of, nil
}

// ledBy waits until each group is led by one of the given shards.
func (s *benchStore) ledBy(ctx context.Context, shards []string) error {
	return drive.Eventually(ctx, "every group is led", func() error {
		view, err := s.place.View(ctx)
		if err != nil {
			return err
		}
		for name, g := range view.Groups {
			if !slices.Contains(shards, g.Leader) {
				return fmt.Errorf("group %s is led by %q", name, g.Leader)
			}
		}
		return s.exitedError()
	})
}

// processorTimes returns the CPU time that each running shard has used.
func (s *benchStore) processorTimes() (map[string]time.Duration, error) {
	const ticksPerSecond = 100 // USER_HZ on Linux: the unit of the times is 1/100 s
	times := map[string]time.Duration{}
	for name, c := range s.shards {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Cmd.Process.Pid))
		if err != nil {
			return nil, fmt.Errorf("shard %s: %w", name, err)
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) < 13 {
			return nil, fmt.Errorf("shard %s: /proc says %q", name, b)
		}
		for _, field := range fields[11:13] { // the fields utime and stime
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("shard %s: /proc says %q: %w", name, b, err)
			}
			times[name] += time.Duration(n) * time.Second / ticksPerSecond
		}
	}
	return times, nil
}
