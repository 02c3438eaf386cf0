package load

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/replicas"
)

// In this test, a call that accepts a loss waits while the shard begins to stop. The call must then leave the replica
// as it is: if it restarted the replica's node, that node would have to be stopped again.
func TestALossIsNotAcceptedInAShardThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stopping atomic.Bool
		logger := slog.New(slog.DiscardHandler)
		l := New(Options{Replicas: replicas.New(replicas.Options{Logger: logger,
			Meta: func() placement.Meta { return placement.Meta{} }}), Logger: logger, Stopping: stopping.Load})
		g := l.Replicas.Add(uuid.New(), replicas.State{})
		g.Serve(nil, nil, 1, nil)
		g.TakeOut(nil) // simulates another change in progress
		ended := make(chan error)
		go func() {
			_, err := l.AcceptLoss(t.Context(), g)
			ended <- err
		}()
		synctest.Wait()
		sv := g.Serve(nil, nil, 1, nil)
		stopping.Store(true)
		g.EndChange()
		if err := <-ended; err == nil || g.Served() != sv {
			t.Errorf("the loss is accepted: %v, served by %p, before by %p", err, g.Served(), sv)
		}
	})
}
