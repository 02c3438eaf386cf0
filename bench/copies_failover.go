package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sheaf.dev/sheaf/bench/drive"
)

const (
	failoverGroups = 16
	// electionTimeout is Raft's election timeout in package replica: 10 ticks of 100 ms. A member that receives nothing
	// from its leader starts an election after one to two election timeouts.
	electionTimeout = time.Second
)

// measureFailover repeatedly kills (with SIGKILL) a process that leads a group, and measures the time until calls
// succeed again.
func (b *copiesBench) measureFailover(ctx context.Context) error {
	dir, err := b.folder("failover")
	if err != nil {
		return err
	}
	s, err := startStore(ctx, dir, b.opts.Binary, 3, copiesOf, failoverGroups)
	if err != nil {
		return err
	}
	defer s.close()
	data := randomBytes(1 << 10)
	if err := s.fill(ctx, 1000, len(data)); err != nil {
		return err
	}
	var puts, gets []float64
	for i := range b.opts.Kills {
		victim, id, err := s.leaderOf(ctx, i)
		if err != nil {
			return err
		}
		s.shards[victim].Kill()
		begin := time.Now()
		err = drive.Parallel(2, func(worker int) error {
			if worker == 0 {
				err := s.put(ctx, id, data)
				puts = append(puts, time.Since(begin).Seconds())
				return err
			}
			err := s.get(ctx, id, len(data))
			gets = append(gets, time.Since(begin).Seconds())
			return err
		})
		if err != nil {
			return fmt.Errorf("kill %d, of shard %s: %w", i+1, victim, err)
		}
		if err := s.start(victim); err != nil {
			return err
		}
		// Wait until each group is led by the shard that its target names. A member becomes leader only after it has caught
		// up.
		if err := s.awaitSettled(ctx); err != nil {
			return fmt.Errorf("behind kill %d: %w", i+1, err)
		}
		if (i+1)%20 == 0 {
			b.Say("  %d of %d kills: put %.3f s", i+1, b.opts.Kills, median(puts))
		}
	}
	most := 2 * electionTimeout.Seconds()
	for _, what := range []struct {
		name  string
		times []float64
	}{{"put", puts}, {"get", gets}} {
		b.add(
			plain(fmt.Sprintf("time from the kill of a leader to the first %s, median of %d", what.name, b.opts.Kills), "s",
				what.times, most).
				WithNote(fmt.Sprintf(
					"the target is twice the election timeout of %v; kill -9 of a shard that leads, call by the Go client",
					electionTimeout)),
			plain(fmt.Sprintf("the same, p99 of %d", b.opts.Kills), "s", []float64{drive.Quantile(what.times, 0.99)}, most),
		)
	}
	return nil
}

// leaderOf picks a record, waits until its group has a live leader, and returns that leader and the record's id.
func (s *benchStore) leaderOf(ctx context.Context, i int) (shard string, id int64, err error) {
	id = drive.Scatter(int64(i)) % 1000
	err = drive.Eventually(ctx, "the group has a leader", func() error {
		view, err := s.place.View(ctx)
		if err != nil {
			return err
		}
		shard = view.Groups[fmt.Sprint(view.Meta.Routing.GroupOf(id))].Leader
		if _, alive := view.Shards[shard]; !alive {
			return errors.New("it does not live")
		}
		return nil
	})
	return shard, id, err
}
