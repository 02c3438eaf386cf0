package archiver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// covering is what has become of a group since the calls of Cover that are being served began to be served.
type covering uint8

const (
	coverUnread covering = iota // the group was not read since then
	coverRead                   // it was read, and no object records the time
	coverNoted                  // an object records the time at which it was read
)

// covers are the calls of Cover. They are safe for concurrent use.
type covers struct {
	signal chan struct{} // wakes the archiver between two rounds; has room for one

	mu      sync.Mutex
	waiting []chan struct{} // calls that no round serves yet; each channel is closed when its call is served
	lack    string          // which groups the calls that are being served wait for; "" if that is not known
}

// Cover waits until objects in the bucket record of each group that it is archived up to a time after the call. So a
// point that is made afterwards has everything that was acknowledged before the call. Otherwise, objects record such a
// time of a group that is not written only every Options.Idle, and a point can only be of the earliest of these times.
// Cover makes the archiver create a log object for it at once. It returns an error if ctx ends earlier, for example
// because the leader of a group does not answer, or because Run does not run. It may be called by any goroutine.
func (a *Archiver) Cover(ctx context.Context) error {
	served := make(chan struct{})
	a.covers.mu.Lock()
	a.covers.waiting = append(a.covers.waiting, served)
	a.covers.mu.Unlock()
	select {
	case a.covers.signal <- struct{}{}:
	default:
	}
	select {
	case <-served:
		return nil
	case <-ctx.Done():
	}
	a.covers.mu.Lock()
	defer a.covers.mu.Unlock()
	a.covers.waiting = slices.DeleteFunc(a.covers.waiting, func(c chan struct{}) bool { return c == served })
	return fmt.Errorf("not all groups are archived up to now: %s%w", a.covers.lack, context.Cause(ctx))
}

// beginCover makes the next round serve the calls of Cover that wait, if no earlier ones are being served.
func (a *Archiver) beginCover() {
	if len(a.serving) > 0 {
		return
	}
	a.covers.mu.Lock()
	a.serving, a.covers.waiting, a.covers.lack = a.covers.waiting, nil, ""
	a.covers.mu.Unlock()
	for _, g := range a.groups {
		g.cover = coverUnread
	}
}

// endCover answers the calls of Cover that are being served, unless a group lacks what they wait for. It must be called
// after each round.
func (a *Archiver) endCover() {
	if len(a.serving) == 0 {
		return
	}
	var lacking []string
	for _, g := range a.sorted() {
		if !g.gone && g.cover != coverNoted {
			lacking = append(lacking, g.name)
		}
	}
	copies := a.copies.waiting()
	if len(lacking) == 0 && copies == 0 {
		for _, served := range a.serving {
			close(served)
		}
		a.serving = nil
		return
	}
	lack := fmt.Sprintf("%d groups wait for their first copy; ", copies)
	if len(lacking) > 0 {
		lack = fmt.Sprintf("%d groups could not be read, such as %s; ", len(lacking),
			strings.Join(lacking[:min(len(lacking), 3)], ", "))
	}
	a.covers.mu.Lock()
	defer a.covers.mu.Unlock()
	a.covers.lack = lack
}

// pause waits until the next round is due: for a duration, or until Cover is called. It returns false if ctx has ended.
func (a *Archiver) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.covers.signal:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
