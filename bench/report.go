// Package bench measures Sheaf against the limits of the machine it runs on, side by side in one run: `sheaf-bench`.
// Variants take turns, in an order that rotates from round to round, and medians are compared, so that a slow minute of
// the machine hits all of them.
package bench

import (
	"fmt"
	"time"

	"sheaf.dev/sheaf/bench/result"
)

// RoundsMin is the least number of rounds that a median is taken from.
const RoundsMin = 5

// against makes a row that compares the medians of two series of rates (more is better).
func against(name, unit string, ours, limit []float64, target float64) result.Ratio {
	return result.Ratio{Labels: result.Labels("what", name), Unit: unit, Ours: ours, Limit: limit, Target: target}
}

// atMost makes a row whose ratio ours / limit should not exceed the target; 0: no target.
func atMost(name, unit string, ours, limit []float64, target float64) result.Ratio {
	r := against(name, unit, ours, limit, target)
	r.AtMost = true
	return r
}

// plain makes a row of one figure that should not exceed the target; 0: no target.
func plain(name, unit string, ours []float64, target float64) result.Ratio {
	return atMost(name, unit, ours, nil, target)
}

func median(v []float64) float64 { return result.Of(v...).Median }

// figure measures once.
type figure func() (float64, error)

// variant is one thing that takes its turn in every round and gives one figure.
type variant struct {
	name string
	run  figure
}

// takeTurns runs every variant once per round, each round beginning with another one, and gives the figures of each.
func takeTurns(rounds int, say func(string, ...any), variants ...variant) (map[string][]float64, error) {
	figures := make(map[string][]float64, len(variants))
	for round := range rounds {
		for i := range variants {
			v := variants[(i+round)%len(variants)]
			f, err := v.run()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			figures[v.name] = append(figures[v.name], f)
		}
		say("  round %d of %d", round+1, rounds)
	}
	return figures, nil
}

// timed gives units per second of a run that handles so many of them.
func timed(units float64, run func() error) (float64, error) {
	begin := time.Now()
	err := run()
	return units / time.Since(begin).Seconds(), err
}
