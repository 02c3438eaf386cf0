package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/dev"
)

// A wait for the store ends in one of three ways: its condition holds, the process exits, or no progress was seen for
// Options.StallMax. In the last two cases the error contains the last response from /status and the end of the log,
// and the log is kept.

const (
	stallMaxDefault = time.Minute
	askEvery        = 500 * time.Millisecond // the interval between two requests of /status
	wordsEvery      = 5 * time.Second        // the interval between two messages about a wait
	dumpMax         = 20 * time.Second       // maximum time that the process may take to write its goroutines' stacks
	logLinesMax     = 20
	groupsSaidMax   = 5
)

// stallError means that the store made no progress for too long.
type stallError struct {
	what  string
	still time.Duration
}

func (e *stallError) Error() string {
	return fmt.Sprintf("%s: nothing has moved for %.0f s", e.what, e.still.Seconds())
}

// wait is the state of one period in which the demo waits for the store.
type wait struct {
	d     *demo
	what  string
	began time.Time
	asked time.Time
	said  time.Time
	moved time.Time // time at which mark last changed
	mark  string
}

func (d *demo) newWait(what string) *wait {
	now := time.Now()
	return &wait{d: d, what: what, began: now, asked: now, said: now, moved: now}
}

// watchProgress requests /status at intervals and prints the progress. markOf must return a string that changes
// whenever there is progress. If the string has not changed for too long, watchProgress returns a stallError.
func (w *wait) watchProgress(ctx context.Context, markOf func(dev.Status) string) error {
	if time.Since(w.asked) >= min(askEvery, w.d.StallMax/4) {
		if s, err := w.d.status(ctx); err == nil {
			if mark := markOf(s); mark != w.mark {
				w.mark, w.moved = mark, time.Now()
			}
		}
		w.asked = time.Now()
	}
	still := time.Since(w.moved)
	if still > w.d.StallMax {
		return &stallError{w.what, still}
	}
	if time.Since(w.said) >= min(wordsEvery, w.d.StallMax/4) {
		w.said = time.Now()
		w.d.say("   %s: %s (%.0f s, the last progress %.0f s ago)", w.what, w.d.waitsFor(), time.Since(w.began).Seconds(),
			still.Seconds())
	}
	return nil
}

// waitsFor returns a sentence that says why the store is not ready, according to its last status.
func (d *demo) waitsFor() string {
	switch {
	case d.lastBody == nil:
		return "the process does not answer yet"
	case d.last.NotYet != "":
		return d.last.NotYet
	}
	return "the process answered last that all is well"
}

// awaitReady returns when the store serves every group.
func (d *demo) awaitReady(ctx context.Context) error {
	d.last, d.lastBody = dev.Status{}, nil
	w := d.newWait("the start of sheaf dev")
	for !d.ready(ctx) {
		if err := w.watchProgress(ctx, loadMark); err != nil {
			return err
		}
		// A group whose load failed will never serve.
		if l := d.last.Load; l.GetDone() && l.GetGroupsFailed() > 0 {
			return fmt.Errorf("%d of %d groups cannot be loaded", l.GroupsFailed, l.GroupsTotal)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.child.Ended:
			return errChildEnded
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

var errChildEnded = errors.New("sheaf dev has ended by itself")

// loadMark returns a string that changes while a load makes progress.
func loadMark(s dev.Status) string {
	mark := fmt.Sprint(s.NotYet, s.Load.GetBytesDone(), s.Load.GetGroupsLoaded(), s.Load.GetGroupsFailed(),
		s.Load.GetDone())
	for _, one := range s.Shards {
		for _, g := range one.Groups {
			mark += g.GetState().Word()
		}
	}
	return mark
}

// writeMark returns a string that changes while data is written. The string includes the file system's free space,
// because the store counts a large record only once it is complete.
func writeMark(s dev.Status) string {
	mark := ""
	for _, one := range s.Shards {
		mark += fmt.Sprint(one.GetShard().GetFreeBytes(), " ")
		for _, g := range one.Groups {
			mark += fmt.Sprint(g.AppliedIndex, " ", g.StoredBytes, " ")
		}
	}
	return mark
}

// runWhileServing runs work that needs the store, and cancels the work if the process exits or no progress is made.
func (d *demo) runWhileServing(ctx context.Context, what string, markOf func(dev.Status) string,
	work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	tick := time.NewTicker(min(askEvery, d.StallMax/4))
	defer tick.Stop()
	w := d.newWait(what)
	w.said = w.began.Add(24 * time.Hour) // look must print nothing, because the work prints its own progress
	for {
		select {
		case err := <-done:
			return err
		case <-d.child.Ended:
			cancel(errChildEnded)
			awaitWork(done)
			return errChildEnded
		case <-tick.C:
			if err := w.watchProgress(ctx, markOf); err != nil {
				cancel(err)
				awaitWork(done)
				return err
			}
		}
	}
}

// awaitWork waits until work that was canceled has returned, but at most for requestMax.
func awaitWork(done <-chan error) {
	select {
	case <-done: //nolint:errcheck // the canceled context is the cause of the error
	case <-time.After(requestMax):
	}
}

// withEvidence adds to an error what helps to find its cause: the store's last status, the end of its log, and the path
// of the log. For a stallError, it first makes the process append its goroutines' stacks to the log.
func (d *demo) withEvidence(err error) error {
	if d.child == nil {
		return err
	}
	d.keepLog = true
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n", err)
	d.writeStatus(&b)
	if tail := d.logTail(); tail != "" {
		fmt.Fprintf(&b, "the end of its log:\n%s\n", tail)
	}
	if _, ok := errors.AsType[*stallError](err); ok {
		fmt.Fprintf(&b, "%s\n", d.dump())
	}
	fmt.Fprintf(&b, "kept: %s; please add it to a report", d.logDir)
	return &evidenceError{err, b.String()}
}

// evidenceError is an error together with the longer message that withEvidence has composed for it.
type evidenceError struct {
	error
	words string
}

func (e *evidenceError) Error() string { return e.words }
func (e *evidenceError) Unwrap() error { return e.error }

// writeStatus appends to b the problems in the last status, and saves the complete status next to the log.
func (d *demo) writeStatus(b *strings.Builder) {
	if d.lastBody == nil {
		fmt.Fprintf(b, "http://%s/status did not answer\n", d.HTTP)
		return
	}
	s, l := d.last, d.last.Load
	fmt.Fprintf(b, "/status said last: ready %v; %s; %d of %d groups loaded, %d failed, %s of %s\n", s.Ready, d.waitsFor(),
		l.GetGroupsLoaded(), l.GetGroupsTotal(), l.GetGroupsFailed(), cli.FormatBytes(l.GetBytesDone()),
		cli.FormatBytes(l.GetBytesTotal()))
	said := 0
	for _, one := range s.Shards {
		for _, problem := range one.GetShard().GetProblems() {
			fmt.Fprintf(b, "  %s: %s\n", one.GetShard().GetName(), problem)
		}
		for _, g := range one.GetGroups() {
			if g.GetState() == recordv1.GroupState_GROUP_STATE_SERVING {
				continue
			}
			if said++; said <= groupsSaidMax {
				fmt.Fprintf(b, "  %s: group %s is %s %s\n", one.GetShard().GetName(), g.GetGroup(),
					g.GetState().Word(), g.GetMessage())
			}
		}
	}
	if said > groupsSaidMax {
		fmt.Fprintf(b, "  and %d more groups\n", said-groupsSaidMax)
	}
	if err := os.WriteFile(filepath.Join(d.logDir, "status.json"), d.lastBody, 0o600); err != nil {
		fmt.Fprintf(b, "  (all of it cannot be kept: %v)\n", err)
	}
}

// logTail returns the end of the log.
func (d *demo) logTail() string {
	content, err := os.ReadFile(d.logName())
	if err != nil {
		return fmt.Sprintf("(%v)", err)
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-logLinesMax):], "\n")
}

// dump makes the process write its goroutines' stacks to the log. This also terminates the process. It returns a
// sentence that says whether that worked.
func (d *demo) dump() string {
	place := d.child.kernelPlace()
	_ = d.child.Cmd.Process.Signal(syscall.SIGQUIT) // an error means that the process has already exited
	select {
	case <-d.child.Ended:
		return "the stacks of its goroutines are at the end of the log"
	case <-time.After(dumpMax):
		return fmt.Sprintf("process %d does not write the stacks of its goroutines within %v: the kernel holds it in %s",
			d.child.pid(), dumpMax, place)
	}
}

func (d *demo) logName() string { return filepath.Join(d.logDir, "log") }
