package shard

import (
	"context"
	"errors"
	"time"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// A disk may be restored from an image that was taken while a shard ran on it. Nothing in the image shows that: it
// looks like the disk after a kill. So the volume takes a step every few seconds in which something became durable, and
// reports each step to etcd. For a restored image, etcd knows a later step, and the volume is refused. What was
// acknowledged since the last step that etcd knows is not covered.

const (
	// stepEvery is the time between two steps of a volume that is written to. During that time, an image of the volume
	// may be mistaken for the volume itself.
	stepEvery = 5 * time.Second
	// stepPatience bounds one request to etcd.
	stepPatience = 5 * time.Second
)

// stepAll takes the volume from step to step until ctx ends. If etcd does not answer, the shard continues. The volume
// remains in the step that must still be reported to etcd, so the time during which an image may be mistaken for the
// volume grows.
func (s *Shard) stepAll(ctx context.Context, known placement.Shard) {
	tick := time.NewTicker(s.cfg.stepEvery)
	defer tick.Stop()
	told := true // etcd holds the step that the volume is in
	for covered := uint64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if told {
			// read before the step, so that the following step covers what becomes durable meanwhile
			durable := s.committer.Synced() + s.installer.tookOver.Load()
			if durable == covered {
				continue
			}
			next, err := s.volume.NextStep(volume.Step(known.Step))
			s.problems.Note("taking the volume to its next step", err)
			if err != nil {
				continue
			}
			known.Registered, known.Step = known.Step, placement.Step(next)
			covered = durable
		}
		patience, cancel := context.WithTimeout(ctx, stepPatience)
		err := s.cfg.Placement.NextStep(patience, known)
		cancel()
		switch told = err == nil; {
		case ctx.Err() != nil:
			return
		case errors.Is(err, placement.ErrRolledBack):
			s.supersede(err)
			return
		}
		s.problems.Note(
			"reporting the step of the volume to etcd: until then, an image of its disk that is put back is not "+
				"distinguished from it", err)
	}
}
