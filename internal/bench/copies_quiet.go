package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// quiet measures what groups cost that nobody uses, and how long it takes to make them.
func (b *copiesBench) quiet(ctx context.Context) error {
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
	b.opts.Say("  %d groups x %d were made in %.1f s", b.opts.Groups, copiesOf, made)
	if err := pause(ctx, 2*time.Second+b.opts.Time); err != nil { // groups come to rest half a second after their last work
		return err
	}
	var shares []float64
	for range b.opts.Rounds {
		before, err := s.processorTime()
		if err != nil {
			return err
		}
		from := time.Now()
		if err := pause(ctx, 2*b.opts.Time); err != nil {
			return err
		}
		after, err := s.processorTime()
		if err != nil {
			return err
		}
		shares = append(shares, 100*(after-before).Seconds()/time.Since(from).Seconds()/float64(len(s.shards)))
	}
	b.add(
		plain(fmt.Sprintf("making %d groups x %d, from the start of 3 shards on", b.opts.Groups, copiesOf), "s", []float64{made}, 0),
		plain(fmt.Sprintf("processor time of a shard with %d groups x %d that nobody uses, percent of a core", b.opts.Groups, copiesOf), "", shares, 2),
	)
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// processorTime is that of all shards.
func (s *benchStore) processorTime() (sum time.Duration, err error) {
	const ticksPerSecond = 100 // USER_HZ
	for name, c := range s.shards {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		if err != nil {
			return 0, fmt.Errorf("shard %s: %w", name, err)
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) < 13 {
			return 0, fmt.Errorf("shard %s: /proc says %q", name, b)
		}
		for _, field := range fields[11:13] { // utime, stime
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(n) * time.Second / ticksPerSecond
		}
	}
	return sum, nil
}
