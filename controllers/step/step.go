// Package step runs the reconciles of all kinds. A reconcile is a list of steps, and each step has an outcome. The
// package also applies objects and reverts changes by others, reports actions, sets conditions, and defines the pauses
// until the next reconcile.
package step

import (
	"context"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Pauses before the next reconcile of an object that waits for something outside the operator. Changes of watched
// objects start a reconcile immediately.
const (
	// PauseShort is for work in progress, such as loading.
	PauseShort = 10 * time.Second
	// PauseLong is for problems that only an administrator can fix.
	PauseLong = time.Minute
)

// Clock returns the current time. The nil Clock is time.Now.
type Clock func() time.Time

// Time returns the time of the clock.
func (c Clock) Time() time.Time {
	if c == nil {
		return time.Now()
	}
	return c()
}

// Outcome is the result of a step. The zero value is Complete.
type Outcome struct {
	kind   outcomeKind
	reason string
	words  string
	after  time.Duration
	err    error
}

type outcomeKind int

const (
	complete outcomeKind = iota
	wait
	fail
	retry
	resting
)

// Complete continues with the next step.
func Complete() Outcome { return Outcome{} }

// Wait ends this reconcile, because something outside the operator has to happen first. The next reconcile starts after
// the given pause, or only when a watched object changes if the pause is 0. The reason is in CamelCase. The message
// says what the reconcile waits for.
func Wait(reason, message string, after time.Duration) Outcome {
	return Outcome{kind: wait, reason: reason, words: message, after: after}
}

// Fail ends this reconcile, because an administrator has to act. The message says what to do.
func Fail(reason, message string) Outcome {
	return Outcome{kind: fail, reason: reason, words: message, after: PauseLong}
}

// Rest ends this reconcile. It is for an object that matches its spec, where the spec asks for no service.
func Rest(reason, message string) Outcome {
	return Outcome{kind: resting, reason: reason, words: message}
}

// Retry ends this reconcile with an error that may be temporary. The queue repeats the reconcile with a growing delay.
// Without an error, the outcome is Complete.
func Retry(err error) Outcome {
	if err == nil {
		return Complete()
	}
	return Outcome{kind: retry, reason: "APIError", words: err.Error(), err: err}
}

// IsComplete reports whether the next step may run.
func (o Outcome) IsComplete() bool { return o.kind == complete }

// IsStalled reports whether an administrator has to act.
func (o Outcome) IsStalled() bool { return o.kind == fail }

// Err returns the error of Retry, or nil.
func (o Outcome) Err() error { return o.err }

// After returns the pause until the next reconcile. A pause of 0 means that only a change of a watched object starts
// it.
func (o Outcome) After() time.Duration { return o.after }

// Again returns the same outcome with the given pause until the next reconcile.
func (o Outcome) Again(after time.Duration) Outcome {
	o.after = after
	return o
}

// Saying returns the same outcome with the given message.
func (o Outcome) Saying(message string) Outcome {
	o.words = message
	return o
}

// Reason returns the reason in CamelCase, or "" for Complete.
func (o Outcome) Reason() string { return o.reason }

// Message returns the human-readable message, or "" for Complete.
func (o Outcome) Message() string { return o.words }

// Result converts the outcome for controller-runtime.
func (o Outcome) Result() (ctrl.Result, error) {
	if o.err != nil {
		return ctrl.Result{}, o.err
	}
	return ctrl.Result{RequeueAfter: o.after}, nil
}

// Notes are outcomes of steps or objects that do not stop the following ones, so that a failure of one object does not
// prevent the repair of another.
type Notes []Outcome

// Add notes an outcome that is not Complete.
func (n *Notes) Add(out Outcome) {
	if !out.IsComplete() {
		*n = append(*n, out)
	}
}

// With returns the outcome of a reconcile that has these notes and whose last step had the outcome end. An outcome that
// needs an administrator takes precedence over an error, and an error over any other outcome. Among equals, the first
// one counts. The shortest pause of all outcomes is used.
func (n Notes) With(end Outcome) Outcome {
	all := slices.Clone(n)
	all.Add(end)
	worst := Complete()
	for _, out := range all {
		if out.Rank() > worst.Rank() {
			worst = out
		}
	}
	for _, out := range all {
		if out.err != nil {
			out.after = PauseShort
		}
		if out.after > 0 && (worst.after == 0 || out.after < worst.after) {
			worst.after = out.after
		}
	}
	return worst
}

// Rank returns the importance of an outcome; higher is more important.
func (o Outcome) Rank() int {
	switch {
	case o.IsStalled():
		return 3
	case o.err != nil:
		return 2
	case !o.IsComplete():
		return 1
	}
	return 0
}

// Step is one part of a reconcile. T holds what the earlier parts have gathered and decided.
type Step[T any] struct {
	Name string
	Do   func(ctx context.Context, t *T) Outcome
}

// Run runs the steps in order until one does not complete, and returns the outcome of the last one that ran.
func Run[T any](ctx context.Context, steps []Step[T], t *T) Outcome {
	for _, step := range steps {
		if out := step.Do(log.IntoContext(ctx, log.FromContext(ctx).WithValues("step", step.Name)), t); !out.IsComplete() {
			return out
		}
	}
	return Complete()
}
