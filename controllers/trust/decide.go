// Package trust moves a running store between plaintext and TLS, and from one authority to the next. Decide, which
// does no I/O, decides which files the processes get next. Keeper creates and renews the certificates. See
// docs/adr/0040-certificates-on-kubernetes.md.
package trust

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// callersPause is how long callers get to load new files before the operator takes a step that locks out callers with
// old files. The operator has to wait, because callers do not report which files they have. The kubelet updates a
// changed Secret within about two minutes, and clients check their files every 10 s.
const callersPause = 3 * time.Minute

// State records how far a change of a store's certificates has got, as in status.tls. The zero value is for a store
// whose processes have not been given any files yet.
type State struct {
	Transport v1alpha1.TLSTransport
	Phase     v1alpha1.TLSPhase
	Since     time.Time // when Transport or Phase last changed
	Rotating  string    // value of spec.tls.rotate that started the rotation in progress
	Rotated   string    // value of spec.tls.rotate that started the last completed rotation
}

// InUse says which authorities the processes trust in a state, and which authorities issue the certificates.
type InUse struct {
	Current bool // processes trust the current authorities
	Next    bool // processes trust the next authorities
	IssueBy Which
}

// Which selects the current or the next authorities.
type Which int

// These are the two sets of authorities of a store.
const (
	Current Which = iota
	Next
)

// InUse derives the trusted and issuing authorities from the state.
func (s State) InUse() InUse {
	switch s.Phase {
	case v1alpha1.TLSTrusting:
		return InUse{Current: true, Next: true, IssueBy: Current}
	case v1alpha1.TLSIssuing:
		return InUse{Current: true, Next: true, IssueBy: Next}
	case v1alpha1.TLSDropping:
		return InUse{Next: true, IssueBy: Next}
	}
	return InUse{Current: true, IssueBy: Current}
}

// Reports compares the reports of the running processes with the files that they were given in the current state.
type Reports struct {
	Processes int
	// UpToDate counts the processes that have loaded their newest files, that is, that use the transport and trust the
	// authorities that they were given.
	UpToDate int
	// Renewed counts the processes among UpToDate that use the newest certificate made for them.
	Renewed int
	// Missing names the first process that is not counted, and says what it does not use yet.
	Missing string
}

// Input is the input of Decide.
type Input struct {
	Wanted v1alpha1.TLSTransport // transport that matches the mode recorded in the status
	Rotate string                // spec.tls.rotate
	// Other is true if the source provides a complete set of certificates whose authorities differ from the current
	// ones.
	Other bool
	// Superseded is true if, during a change, the source provides a complete set of certificates whose authorities
	// differ from the next ones.
	Superseded bool
	State      State
	HasNext    bool // the next authorities exist
	Reports    Reports
	// Found is the transport that the running processes use, if the status records none, for example because the status
	// was lost. It is TransportBoth if they use different ones, and empty if no process runs.
	Found v1alpha1.TLSTransport
	Now   time.Time
}

// Decision is the next step. If MakeNext is set, the next authorities have to be created before State is recorded. If
// Promote is set, the next authorities have to replace the current ones before State is recorded.
type Decision struct {
	State    State
	MakeNext bool
	// Merge is true if the current and the next authorities have to be combined into the current ones before MakeNext
	// takes effect.
	Merge   bool
	Promote bool
	// Words describe the next change, and what it waits for. They are empty if everything matches the spec.
	Words string
}

// Decide handles every combination of states and inputs. It takes one step at a time, and only after every running
// process has reported that it completed the previous step. Otherwise a process could be locked out. A process that is
// not running takes the latest step when it starts.
func Decide(in Input) Decision {
	s := in.State
	switch {
	case s.Transport == "" && in.Found != "":
		return Decision{State: State{Transport: in.Found, Phase: v1alpha1.TLSReady, Since: in.Now, Rotated: in.Rotate}}
	case s.Transport == "": // no process with files runs yet
		return Decision{State: State{Transport: in.Wanted, Phase: v1alpha1.TLSReady, Since: in.Now, Rotated: in.Rotate}}
	case in.Superseded && (s.Phase == v1alpha1.TLSTrusting || s.Phase == v1alpha1.TLSIssuing):
		s.Phase, s.Since, s.Rotating = v1alpha1.TLSTrusting, in.Now, in.Rotate
		return Decision{State: s, Merge: true, MakeNext: true,
			Words: "the source has other authorities than those that were to be the next: processes learn to trust them too"}
	case s.Phase == v1alpha1.TLSTrusting:
		return s.after(in, in.Reports.UpToDate, "trust the next authorities too", v1alpha1.TLSIssuing)
	case s.Phase == v1alpha1.TLSIssuing:
		return s.after(in, in.Reports.Renewed, "use certificates of the next authorities", v1alpha1.TLSDropping)
	case s.Phase == v1alpha1.TLSDropping:
		return s.dropped(in)
	case s.Transport != in.Wanted:
		return s.hop(in)
	case s.Phase == v1alpha1.TLSSwitching && in.Reports.UpToDate < in.Reports.Processes:
		return Decision{State: s, Words: in.Reports.words("use transport " + string(s.Transport))}
	case s.Phase == v1alpha1.TLSSwitching:
		s.Phase, s.Since = v1alpha1.TLSReady, in.Now
		return Decision{State: s}
	case in.Other || in.Rotate != "" && in.Rotate != s.Rotated:
		if in.Reports.UpToDate < in.Reports.Processes {
			return Decision{State: s, Words: in.Reports.words(
				"are as they were given before, which comes before the authorities change")}
		}
		s.Phase, s.Since, s.Rotating = v1alpha1.TLSTrusting, in.Now, in.Rotate
		return Decision{State: s, MakeNext: in.Other || !in.HasNext, Words: "processes learn to trust the next authorities"}
	}
	return Decision{State: s}
}

// after starts the next phase of the change once all processes are ready for it, and callers have had callersPause to
// load their new files. Until then it leaves the state unchanged, and the Words of the decision say what the change is
// waiting for.
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

// dropped returns the last step of a change of authorities, which is taken once all processes trust only the new ones.
func (s State) dropped(in Input) Decision {
	if in.Reports.UpToDate < in.Reports.Processes {
		return Decision{State: s, Words: in.Reports.words("trust the new authorities alone")}
	}
	s.Phase, s.Since, s.Rotated, s.Rotating = v1alpha1.TLSReady, in.Now, s.Rotating, ""
	return Decision{State: s, Promote: in.HasNext}
}

// hop takes one step from one transport towards another. It never goes directly between plaintext and required.
func (s State) hop(in Input) Decision {
	to := in.Wanted
	if s.Transport != v1alpha1.TransportBoth {
		to = v1alpha1.TransportBoth
	}
	if in.Reports.UpToDate < in.Reports.Processes {
		return Decision{State: s, Words: in.Reports.words(fmt.Sprintf(
			"use transport %s and have their certificates, which comes before transport %s", s.Transport, to))}
	}
	s.Transport, s.Phase, s.Since = to, v1alpha1.TLSSwitching, in.Now
	return Decision{State: s, Words: "processes are given transport " + string(to)}
}

func (r Reports) words(what string) string { return r.wordsOf(r.UpToDate, what) }

func (r Reports) wordsOf(n int, what string) string {
	return strings.TrimSuffix(fmt.Sprintf("%d of %d processes %s: %s", n, r.Processes, what, r.Missing), ": ")
}

// TransportOf returns the transport for a mode.
func TransportOf(mode v1alpha1.TLSMode) v1alpha1.TLSTransport {
	switch mode {
	case v1alpha1.TLSRequired:
		return v1alpha1.TransportRequired
	case v1alpha1.TLSOptional:
		return v1alpha1.TransportBoth
	}
	return v1alpha1.TransportPlaintext
}

// First returns the initial status.tls of a store that the operator has not handled before. In a new store, an absent
// spec.tls means that TLS is required.
func First(store *v1alpha1.RecordStore, image string) v1alpha1.TLSStatus {
	if store.Status.StoreUID == "" {
		return v1alpha1.TLSStatus{Default: v1alpha1.TLSRequired}
	}
	// The store was created by an operator that did not support TLS. Its pods have no certificates, and get them only
	// when they are recreated for another reason.
	return v1alpha1.TLSStatus{
		Default: v1alpha1.TLSDisabled, Transport: v1alpha1.TransportPlaintext, Phase: v1alpha1.TLSReady, WithoutImage: image,
	}
}

// Again returns the status.tls of a store whose status is lost, but whose processes were given a transport.
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

// ModeOf returns the TLS mode of a store, from its spec or by default.
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

// MayMount reports whether the pods of a store that has been serving without TLS may be recreated with certificates.
// They may if they get a new image anyway, or if the spec asks for TLS.
func MayMount(store *v1alpha1.RecordStore, image string) bool {
	return store.Spec.TLS != nil || store.Status.TLS != nil && store.Status.TLS.WithoutImage != image
}
