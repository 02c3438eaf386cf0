// Package step is how a reconcile runs, whatever it reconciles: a list of steps with an outcome each, objects that are
// applied and taken back from others, news that are told once, conditions, and the pauses until the next look.
package step

import (
	"context"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Pauses before the next look at something that waits for the outside world. Changes of watched objects come at once.
const (
	// PauseShort is for work in progress, such as loading.
	PauseShort = 10 * time.Second
	// PauseLong is for what only a person can mend.
	PauseLong = time.Minute
)

// Outcome is how a step ended. The zero value is Complete.
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

// Complete goes on to the next step.
func Complete() Outcome { return Outcome{} }

// Wait ends this reconcile: something outside has to happen first, and is looked at again after a pause (0: only when
// a watched object changes). The reason is CamelCase, the message says what is waited for.
func Wait(reason, message string, after time.Duration) Outcome {
	return Outcome{kind: wait, reason: reason, words: message, after: after}
}

// Fail ends this reconcile: a person has to act, and the message says how.
func Fail(reason, message string) Outcome {
	return Outcome{kind: fail, reason: reason, words: message, after: PauseLong}
}

// Rest ends this reconcile: all is as the spec wants it, and that is not to serve.
func Rest(reason, message string) Outcome {
	return Outcome{kind: resting, reason: reason, words: message}
}

// Retry ends this reconcile with an error that may pass by itself; the queue repeats it with a growing delay.
func Retry(err error) Outcome {
	return Outcome{kind: retry, reason: "APIError", words: err.Error(), err: err}
}

// IsComplete says whether the next step may go on.
func (o Outcome) IsComplete() bool { return o.kind == complete }

// IsStalled says whether a person has to act.
func (o Outcome) IsStalled() bool { return o.kind == fail }

// isResting says whether all is as the spec wants it, and that is not to serve.
func (o Outcome) isResting() bool { return o.kind == resting }

// Err is the error of Retry; nil otherwise.
func (o Outcome) Err() error { return o.err }

// After is the pause until the next look; 0: only when a watched object changes.
func (o Outcome) After() time.Duration { return o.after }

// Again is the same outcome, looked at again after this pause.
func (o Outcome) Again(after time.Duration) Outcome {
	o.after = after
	return o
}

// Saying is the same outcome with another message.
func (o Outcome) Saying(message string) Outcome {
	o.words = message
	return o
}

// Reason is CamelCase, empty where complete.
func (o Outcome) Reason() string { return o.reason }

// Message is for people, empty where complete.
func (o Outcome) Message() string { return o.words }

// Result is what controller-runtime wants to hear.
func (o Outcome) Result() (ctrl.Result, error) {
	if o.err != nil {
		return ctrl.Result{}, o.err
	}
	return ctrl.Result{RequeueAfter: o.after}, nil
}

// Notes are outcomes of steps, or of objects, that do not stop the ones behind them: what is refused in one place must
// not keep another one from being healed.
type Notes []Outcome

// Add notes what did not complete.
func (n *Notes) Add(out Outcome) {
	if !out.IsComplete() {
		*n = append(*n, out)
	}
}

// With is how a reconcile ended that noted these on its way: with what a person has to do, else with the first error,
// else with what came first. What would be looked at sooner still is.
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

// Rank orders outcomes by how much they matter.
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

// Step is one part of a reconcile of T, which carries what was gathered and decided so far.
type Step[T any] struct {
	Name string
	Do   func(ctx context.Context, t *T) Outcome
}

// Run does the steps in their order until one does not complete, and returns how that ended.
func Run[T any](ctx context.Context, steps []Step[T], t *T) Outcome {
	for _, step := range steps {
		if out := step.Do(log.IntoContext(ctx, log.FromContext(ctx).WithValues("step", step.Name)), t); !out.IsComplete() {
			return out
		}
	}
	return Complete()
}
