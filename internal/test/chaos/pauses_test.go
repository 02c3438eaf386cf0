package chaos

import (
	"fmt"
	"time"
)

// The pauses are about as long as a lease or an election timeout (1 to 2 s).
const (
	pauses     = 6
	pauseLeast = 500 * time.Millisecond
	pauseMost  = 2 * time.Second
)

// pause stops a shard several times, each time for about as long as a lease or an election timeout.
func (n *nemesis) pause(victim *server) (string, error) {
	words, changes := "", 0
	for range pauses {
		before := n.ledBy(victim)
		length := pauseLeast + time.Duration(n.random.Int64N(int64(pauseMost-pauseLeast)))
		took, err := hold(victim.process, length, func() error { return nil })
		if err != nil {
			return "", err
		}
		words += fmt.Sprintf(" %.1f", took.Seconds())
		time.Sleep(time.Duration(n.random.Int64N(int64(pauseLeast)))) // lets the shard run for a moment
		changes += max(0, len(before)-len(n.ledBy(victim)))
	}
	return fmt.Sprintf("stopped for%s s, and lost the lead of %d groups by it", words, changes), nil
}

// stopGateway stops a gateway with SIGSTOP and lets it continue later. Calls that the gateway had accepted before the
// stop are then completed.
func (n *nemesis) stopGateway(victim *server) (string, error) {
	before := n.load.history.count()
	length := pauseLeast + time.Duration(n.random.Int64N(int64(holdMin)))
	took, err := hold(victim.process, length, func() error { return n.awaitAnswers(before, 50) })
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("stopped for %.1f s, %d calls were answered meanwhile", took.Seconds(),
			n.load.history.count()-before),
		await(victim.name, time.Minute, victim.ready)
}

// killGateway kills a gateway with SIGKILL and starts it again.
func (n *nemesis) killGateway(victim *server) (string, error) {
	before := n.load.history.count()
	victim.kill()
	if !victim.killed() {
		return "", fmt.Errorf("it was not killed: %v", victim.cmd.ProcessState)
	}
	if err := n.awaitAnswers(before, 200); err != nil {
		return "", err
	}
	answered := n.load.history.count() - before
	if err := victim.start(); err != nil {
		return "", err
	}
	return fmt.Sprintf("ended by SIGKILL, %d calls were answered without it", answered),
		await(victim.name, time.Minute, victim.ready)
}

// awaitAnswers waits until the given number of further calls has been answered. The argument before is the number of
// calls that had been answered when the wait began.
func (n *nemesis) awaitAnswers(before, calls int) error {
	return await("calls are answered meanwhile", time.Minute, func() error {
		if now := n.load.history.count(); now < before+calls {
			return fmt.Errorf("%d were", now-before)
		}
		return nil
	})
}
