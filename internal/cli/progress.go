package cli

import (
	"fmt"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// tally is how far something is. The totals grow while they are not known.
type tally struct {
	files, bytes           int64
	totalFiles, totalBytes int64
	totalKnown             bool
}

// progress shows how far something is: as a bar with rate and time to go on a terminal, else as a line now and then.
type progress struct {
	out   *Output
	verb  string
	unit  string // what tally.files counts
	read  func() tally
	begin time.Time
	bar   *progressbar.ProgressBar
	end   chan struct{}
	done  sync.WaitGroup
}

// startProgress begins to show; quiet shows nothing.
func startProgress(out *Output, quiet bool, verb, unit string, read func() tally) *progress {
	p := &progress{out: out, verb: verb, unit: unit, read: read, begin: time.Now(), end: make(chan struct{})}
	if quiet {
		return p
	}
	every := 3 * time.Second
	if isTerminal(out.Err) {
		every = 200 * time.Millisecond
		p.bar = progressbar.NewOptions64(-1,
			progressbar.OptionSetWriter(out.Err),
			progressbar.OptionSetDescription(verb),
			progressbar.OptionShowBytes(true),
			progressbar.OptionUseIECUnits(true),
			progressbar.OptionShowTotalBytes(true),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionFullWidth(),
			progressbar.OptionClearOnFinish(),
		)
	}
	p.done.Go(func() {
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

// stop ends the showing and clears the bar.
func (p *progress) stop() {
	close(p.end)
	p.done.Wait()
	if p.bar != nil {
		_ = p.bar.Finish() // a bar that cannot be drawn is no reason to fail
	}
}

func (p *progress) show() {
	t := p.read()
	if p.bar != nil {
		if t.totalKnown && p.bar.GetMax64() != t.totalBytes && t.totalBytes > 0 {
			p.bar.ChangeMax64(t.totalBytes)
		}
		p.bar.Describe(fmt.Sprintf("%s %s %s", p.verb, FormatCount(t.files), p.unit))
		_ = p.bar.Set64(t.bytes) // as in stop
		return
	}
	p.out.Sayf("%s", p.line(t))
}

func (p *progress) line(t tally) string {
	seconds := time.Since(p.begin).Seconds()
	rate := float64(t.bytes) / seconds
	line := fmt.Sprintf("%s %s %s, %s, %s/s", p.verb, FormatCount(t.files), p.unit, FormatBytes(t.bytes), FormatBytes(int64(rate)))
	if t.totalKnown && rate > 0 && t.totalBytes >= t.bytes {
		left := time.Duration(float64(t.totalBytes-t.bytes) / rate * float64(time.Second))
		line += fmt.Sprintf(", %d%%, %v to go", 100*t.bytes/max(t.totalBytes, 1), left.Round(time.Second))
	}
	return line
}

func (im *importer) startProgress() *progress {
	verb := "imported"
	if im.opts.DryRun {
		verb = "looked at"
	}
	return startProgress(im.out, im.opts.Quiet, verb, "files", func() tally {
		return tally{
			files: im.seenFiles.Load(), bytes: im.seenBytes.Load(),
			totalFiles: im.totalFiles.Load(), totalBytes: im.totalBytes.Load(), totalKnown: im.totalKnown.Load(),
		}
	})
}
