// Package trust brings a store from plaintext to TLS and back, and from one authority to the next, while it serves:
// what is to be told to its processes next (Decide, which is pure), and who makes and renews the certificates (Keeper).
// See docs/adr/0040-certificates-on-kubernetes.md.
package trust

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// callersPause is for how long callers are given new files before anything is done that callers without them would
// notice: the kubelet brings a changed Secret within about two minutes, and clients look at files every 10 s. Callers
// do not tell which files they have.
const callersPause = 3 * time.Minute

// State is how far the changes of a store's certificates are: what status.tls records. The zero value is a store that
// was told nothing yet.
type State struct {
	Transport v1alpha1.TLSTransport
	Phase     v1alpha1.TLSPhase
	Since     time.Time // when Transport or Phase changed last
	Rotating  string    // value of spec.tls.rotate that is being carried out
	Rotated   string    // the one that was carried out last
}

// Told says which authorities a state has processes trust, and which one issues.
type Told struct {
	Current bool // trusted
	Next    bool // trusted
	IssueBy Which
}

// Which of two authorities.
type Which int

// Authorities of a store.
const (
	Current Which = iota
	Next
)

// Told is what follows from the state.
func (s State) Told() Told {
	switch s.Phase {
	case v1alpha1.TLSTrusting:
		return Told{Current: true, Next: true, IssueBy: Current}
	case v1alpha1.TLSIssuing:
		return Told{Current: true, Next: true, IssueBy: Next}
	case v1alpha1.TLSDropping:
		return Told{Next: true, IssueBy: Next}
	}
	return Told{Current: true, IssueBy: Current}
}

// Reports are what the running processes of a store have said, compared with what the state has them told.
type Reports struct {
	Processes int
	// AsTold counts those that use the transport and trust the authorities that they were told.
	AsTold int
	// Renewed counts those of AsTold that use the newest certificate that was made for them.
	Renewed int
	// Missing says of the first of the others what they lack, for people.
	Missing string
}

// Input of Decide.
type Input struct {
	Wanted v1alpha1.TLSTransport // that the store is to come to
	Rotate string                // spec.tls.rotate
	// Other: the source has other authorities than the current ones, and all that it is to give is there.
	Other bool
	// Superseded: while the authorities change, the source has others than the next ones, and all that it is to give is
	// there.
	Superseded bool
	State      State
	HasNext    bool // the next authorities were made
	Reports    Reports
	// Found is the transport of processes that run although nothing is recorded yet, as where the status was lost;
	// both, where they differ. Empty: none runs.
	Found v1alpha1.TLSTransport
	Now   time.Time
}

// Decision is what is next. Where MakeNext is set, the next authorities are to be made before State is recorded; where
// Settle is, they are to take the place of the current ones before that.
type Decision struct {
	State    State
	MakeNext bool
	// Merge: the current and the next authorities are to be the current ones together before MakeNext.
	Merge  bool
	Settle bool
	// Words say what is waited for; empty: all is as asked for.
	Words string
}

// Decide is total: each state with each input has one decision. One step is taken at a time, and each only when every
// process that runs has said that it has taken the step before: a process that did not would be shut out. Processes
// that do not run take at their start what was told last.
func Decide(in Input) Decision {
	s := in.State
	switch {
	case s.Transport == "" && in.Found != "":
		return Decision{State: State{Transport: in.Found, Phase: v1alpha1.TLSReady, Since: in.Now, Rotated: in.Rotate}}
	case s.Transport == "": // nothing runs yet that was told anything
		return Decision{State: State{Transport: in.Wanted, Phase: v1alpha1.TLSReady, Since: in.Now, Rotated: in.Rotate}}
	case in.Superseded && (s.Phase == v1alpha1.TLSTrusting || s.Phase == v1alpha1.TLSIssuing):
		s.Phase, s.Since, s.Rotating = v1alpha1.TLSTrusting, in.Now, in.Rotate
		return Decision{State: s, Merge: true, MakeNext: true,
			Words: "the source has other authorities than those that were to be the next: processes learn to trust them too"}
	case s.Phase == v1alpha1.TLSTrusting:
		return s.after(in, in.Reports.AsTold, "trust the next authorities too", v1alpha1.TLSIssuing)
	case s.Phase == v1alpha1.TLSIssuing:
		return s.after(in, in.Reports.Renewed, "use certificates of the next authorities", v1alpha1.TLSDropping)
	case s.Phase == v1alpha1.TLSDropping:
		return s.dropped(in)
	case s.Transport != in.Wanted:
		return s.hop(in)
	case s.Phase == v1alpha1.TLSSwitching && in.Reports.AsTold < in.Reports.Processes:
		return Decision{State: s, Words: in.Reports.words("use transport " + string(s.Transport))}
	case s.Phase == v1alpha1.TLSSwitching:
		s.Phase, s.Since = v1alpha1.TLSReady, in.Now
		return Decision{State: s}
	case in.Other || in.Rotate != "" && in.Rotate != s.Rotated:
		if in.Reports.AsTold < in.Reports.Processes {
			return Decision{State: s, Words: in.Reports.words(
				"are as they were told before, which comes before the authorities change")}
		}
		s.Phase, s.Since, s.Rotating = v1alpha1.TLSTrusting, in.Now, in.Rotate
		return Decision{State: s, MakeNext: in.Other || !in.HasNext, Words: "processes learn to trust the next authorities"}
	}
	return Decision{State: s}
}

// after goes on to a phase when all processes have said that they are ready for it, and callers had their time.
func (s State) after(in Input, ready int, what string, next v1alpha1.TLSPhase) Decision {
	if ready < in.Reports.Processes {
		return Decision{State: s, Words: in.Reports.wordsOf(ready, what)}
	}
	if until := s.Since.Add(callersPause); in.Now.Before(until) {
		return Decision{State: s, Words: fmt.Sprintf("all %d processes %s; callers have until %s to take their new files",
			in.Reports.Processes, what, until.UTC().Format(time.RFC3339))}
	}
	s.Phase, s.Since = next, in.Now
	return Decision{State: s, Words: "phase " + string(next) + " begins"}
}

// dropped ends a change of authorities.
func (s State) dropped(in Input) Decision {
	if in.Reports.AsTold < in.Reports.Processes {
		return Decision{State: s, Words: in.Reports.words("trust the new authorities alone")}
	}
	s.Phase, s.Since, s.Rotated, s.Rotating = v1alpha1.TLSReady, in.Now, s.Rotating, ""
	return Decision{State: s, Settle: in.HasNext}
}

// hop takes one step from one transport towards another one: plaintext and required are never neighbours.
func (s State) hop(in Input) Decision {
	to := in.Wanted
	if s.Transport != v1alpha1.TransportBoth {
		to = v1alpha1.TransportBoth
	}
	if in.Reports.AsTold < in.Reports.Processes {
		return Decision{State: s, Words: in.Reports.words(fmt.Sprintf(
			"use transport %s and have their certificates, which comes before transport %s", s.Transport, to))}
	}
	s.Transport, s.Phase, s.Since = to, v1alpha1.TLSSwitching, in.Now
	return Decision{State: s, Words: "processes are told transport " + string(to)}
}

func (r Reports) words(what string) string { return r.wordsOf(r.AsTold, what) }

func (r Reports) wordsOf(n int, what string) string {
	return strings.TrimSuffix(fmt.Sprintf("%d of %d processes %s: %s", n, r.Processes, what, r.Missing), ": ")
}

// TransportOf is the transport that a mode asks for.
func TransportOf(mode v1alpha1.TLSMode) v1alpha1.TLSTransport {
	switch mode {
	case v1alpha1.TLSRequired:
		return v1alpha1.TransportRequired
	case v1alpha1.TLSOptional:
		return v1alpha1.TransportBoth
	}
	return v1alpha1.TransportPlaintext
}

// First is what the operator records of a store that it sees for the first time. absent is what an absent spec.tls
// means for new stores.
func First(store *v1alpha1.RecordStore, absent v1alpha1.TLSMode, image string) v1alpha1.TLSStatus {
	if store.Status.StoreUID == "" {
		return v1alpha1.TLSStatus{Default: absent}
	}
	// It has served before there was TLS. Its pods have no certificates, and get them when they are made anew anyway.
	return v1alpha1.TLSStatus{
		Default: v1alpha1.TLSDisabled, Transport: v1alpha1.TransportPlaintext, Phase: v1alpha1.TLSReady, WithoutImage: image,
	}
}

// Again is what the operator records of a store whose status is lost, and whose processes were told a transport.
func Again(store *v1alpha1.RecordStore, told v1alpha1.TLSTransport, now time.Time) v1alpha1.TLSStatus {
	out := v1alpha1.TLSStatus{Default: v1alpha1.TLSRequired, Transport: told, Phase: v1alpha1.TLSReady,
		Since: new(metav1.NewTime(now))}
	if told == v1alpha1.TransportPlaintext {
		out.Default = v1alpha1.TLSDisabled
	}
	if store.Spec.TLS != nil {
		out.Rotated = store.Spec.TLS.Rotate
	}
	return out
}

// ModeOf is what is asked of a store: by its spec, or by default.
func ModeOf(store *v1alpha1.RecordStore) v1alpha1.TLSMode {
	switch {
	case store.Spec.TLS != nil && store.Spec.TLS.Mode != "":
		return store.Spec.TLS.Mode
	case store.Spec.TLS != nil:
		return v1alpha1.TLSRequired
	case store.Status.TLS != nil && store.Status.TLS.Default != "":
		return store.Status.TLS.Default
	}
	return v1alpha1.TLSDisabled
}

// MayMount says whether the pods of a store that served without TLS may be made anew with certificates: they take
// another image anyway, or somebody has asked for TLS.
func MayMount(store *v1alpha1.RecordStore, image string) bool {
	return store.Spec.TLS != nil || store.Status.TLS != nil && store.Status.TLS.WithoutImage != image
}

// Default is what an absent spec.tls means for new stores.
const Default = v1alpha1.TLSRequired
