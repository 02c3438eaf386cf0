package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// drillsEvery is how often an archiver looks for new drills in the bucket. Each look is a list, which providers charge
// like a put.
const drillsEvery = 10 * time.Minute

// watchDrills looks for the newest drill until ctx ends. Trouble with that does not stop the archiver.
func (p *process) watchDrills(ctx context.Context, log *slog.Logger, b bucket.Bucket, store uuid.UUID,
	keys object.Keys) {
	for {
		newest, proof, err := reader.NewestDrills(ctx, b, store, keys)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Warn("the drills of the archive cannot be read; this is tried again", "error", err)
		default:
			p.setDrill(newest, proof)
		}
		if !backoff.Sleep(ctx, drillsEvery) {
			return
		}
	}
}

// setDrill notes the newest drill, and the newest one that has proven the archive. Both may be nil.
func (p *process) setDrill(newest, proof *object.Drill) {
	var d *archiving.Drill
	if newest != nil {
		d = &archiving.Drill{Time: time.Unix(0, newest.Time).UTC(), Result: newest.Result, Error: newest.Error,
			Groups: len(newest.Groups), Records: newest.Records, Bytes: newest.Bytes, Seconds: newest.Seconds,
			Differing: newest.Differing}
		if newest.Point != 0 {
			d.Point = time.Unix(0, newest.Point).UTC()
		}
		for _, difference := range newest.Differences[:min(len(newest.Differences), archiving.DifferencesMax)] {
			d.Differences = append(d.Differences, difference.String())
		}
		if proof != nil {
			d.Proven = new(time.Unix(0, proof.Time).UTC())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drill = d
}

// drilled returns the newest drill for a report. The caller holds p.mu.
func (p *process) drilled(now time.Time) *archiving.Drill {
	if p.drill == nil {
		return nil
	}
	d := *p.drill
	if d.Proven != nil {
		d.ProvenSeconds = new(max(now.Sub(*d.Proven), 0).Seconds())
	}
	return &d
}
