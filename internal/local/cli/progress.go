package cli

import (
	"fmt"
	"sync"
	"time"
)

// tally holds the progress of an operation at one moment. The totals may still grow until totalKnown is true.
type tally struct {
	files, bytes           int64
	totalFiles, totalBytes int64
	totalKnown             bool
}

// fileBytes is added to the size of each file when the remaining time is estimated, because even an empty file takes
// time.
const fileBytes = 16 << 10

// done returns the completed fraction, from 0 to 1, or a negative number if the total is unknown.
func (t tally) done() float64 {
	var done, whole float64
	if t.totalFiles > 0 {
		done, whole = fileBytes*float64(t.files), fileBytes*float64(t.totalFiles)
	}
	if t.totalBytes > 0 { // a total of 0 bytes means unknown
		done, whole = done+float64(t.bytes), whole+float64(t.totalBytes)
	}
	if !t.totalKnown || whole == 0 {
		return -1
	}
	return min(done/whole, 1)
}

// progress shows the progress of an operation. On a terminal, it rewrites one line. Otherwise it prints a line from
// time to time.
type progress struct {
	out      *Output
	verb     string
	unit     string // the unit of tally.files
	read     func() tally
	begin    time.Time
	seen     tally     // the progress that was shown last
	moved    time.Time // the time when seen was first shown
	terminal bool
	end      chan struct{}
	shown    sync.WaitGroup
}

// startProgress starts the display. If quiet is true, nothing is shown.
func startProgress(out *Output, quiet bool, verb, unit string, read func() tally) *progress {
	p := &progress{out: out, verb: verb, unit: unit, read: read, begin: time.Now(), end: make(chan struct{})}
	p.moved = p.begin
	if quiet {
		return p
	}
	every := 3 * time.Second
	if p.terminal = out.Terminal(); p.terminal {
		every = 200 * time.Millisecond
	}
	p.shown.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-p.end:
				return
			case <-tick.C:
				p.show()
			}
		}
	})
	return p
}

// stop ends the display and clears the line.
func (p *progress) stop() {
	close(p.end)
	p.shown.Wait()
	if p.terminal {
		p.out.SetLine("")
	}
}

func (p *progress) show() {
	if line := p.line(p.read(), time.Now()); p.terminal {
		p.out.SetLine(line)
	} else {
		p.out.Sayf("%s", line)
	}
}

// stillAfter is the time without progress after which the line no longer shows the remaining time, but that there is
// no progress.
const stillAfter = 10 * time.Second

// line returns the completed fraction, the remaining time at the average rate, the completed amount and the rate. The
// amount and the rate come last, because a narrow terminal truncates the end.
func (p *progress) line(t tally, now time.Time) string {
	if t.files != p.seen.files || t.bytes != p.seen.bytes {
		p.seen, p.moved = t, now
	}
	passed := now.Sub(p.begin)
	var line string
	switch done, still := t.done(), now.Sub(p.moved); {
	case still >= stillAfter:
		line = fmt.Sprintf("nothing for %v: ", still.Round(time.Second))
		if done > 0 {
			line = fmt.Sprintf("%d%%, %s", int(100*done), line)
		}
	case done > 0:
		left := time.Duration(float64(passed) * (1 - done) / done)
		line = fmt.Sprintf("%d%%, %v to go: ", int(100*done), left.Round(time.Second))
	}
	count := FormatCount(t.files)
	if t.totalKnown && t.totalFiles > 0 {
		count += " of " + FormatCount(t.totalFiles)
	}
	rate := float64(t.bytes) / max(passed.Seconds(), 1e-9)
	return line + fmt.Sprintf("%s %s %s, %s, %s/s", p.verb, count, p.unit, FormatBytes(t.bytes), FormatBytes(int64(rate)))
}

// ShowProgress shows the progress of an operation whose total is not known: the number of items in the given unit,
// and the number of bytes. The function that it returns ends the display. If quiet is true, nothing is shown.
func ShowProgress(out *Output, quiet bool, verb, unit string, read func() (things, bytes int64)) (stop func()) {
	return startProgress(out, quiet, verb, unit, func() tally {
		things, bytes := read()
		return tally{files: things, bytes: bytes}
	}).stop
}
