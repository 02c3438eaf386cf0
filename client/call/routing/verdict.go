package routing

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
)

// Fate is the consequence of a failed attempt for the call.
type Fate int

// These constants are the possible consequences of a failed attempt.
const (
	Final   Fate = iota // the call must not be retried
	Refused             // the call was certainly not applied, and may succeed later or at another server
	Unknown             // the call may have been applied
)

// Verdict is the classification of a failed attempt.
type Verdict struct {
	Fate   Fate
	Reason string            // reason in Sheaf's ErrorInfo, or SHARD_UNREACHABLE for a transport error
	Info   map[string]string // metadata of Sheaf's ErrorInfo
	Wait   time.Duration     // minimum wait that the server asks for, or 0 if none
	// EndsDoubt means that the group's leader sent this response to a write after it had looked for the request id.
	// Therefore no earlier attempt with that id was applied. All other failures leave open whether an earlier attempt
	// was applied.
	EndsDoubt bool
	// TimedOut is true if the attempt failed because the call's time ran out, rather than because a server responded.
	TimedOut bool
}

// Later reports whether the server was overloaded, or a rate quota is used up. In both cases the call had no effect,
// and may be retried later. A used-up storage quota has no Wait, because a retry does not help.
func (v Verdict) Later() bool {
	return v.Fate == Final && (v.Reason == reason.Overloaded || v.Reason == reason.QuotaExceeded && v.Wait > 0)
}

// Judge classifies the error of an attempt. The argument sent means that the request may have left this process. In
// this case, a transport error leaves the outcome unknown.
func Judge(st *status.Status, sent bool) Verdict {
	var v Verdict
	ours := false
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == reason.Domain {
				v.Reason, v.Info, ours = d.GetReason(), d.GetMetadata(), true
			}
		case *errdetails.RetryInfo:
			v.Wait = d.GetRetryDelay().AsDuration()
		}
	}
	switch code := st.Code(); {
	case code == codes.Unavailable && ours:
		v.Fate = Refused
	case code == codes.Unavailable:
		v.Reason, v.Fate = reason.ShardUnreachable, Unknown
		if !sent {
			v.Fate = Refused
		}
	case code == codes.FailedPrecondition && (v.Reason == reason.WrongShard || v.Reason == reason.NotLeader):
		v.Fate = Refused
	case code == codes.OutOfRange && v.Reason == reason.ViewExpired && v.Info["shard"] != "":
		v.Fate = Refused // only this shard's copy lacks what the view needs
	case code == codes.Unknown && v.Reason == reason.OutcomeUnknown:
		v.Fate = Unknown
	case code == codes.DeadlineExceeded || code == codes.Canceled:
		v.TimedOut = true
	}
	switch v.Reason {
	case reason.VersionMismatch, reason.RecordExists, reason.RequestIDReused:
		v.EndsDoubt = v.Fate == Final
	}
	return v
}

// JudgeStream is like Judge, for a message that had no response yet when its write stream ended. The argument first
// says whether the message was the first one without a response. Only this message can be the cause of the stream's
// status. A message that was sent may have been applied, unless it was the first one and the status is a final
// refusal.
func JudgeStream(st *status.Status, first, sent bool) Verdict {
	v := Judge(st, sent)
	switch {
	case !sent && v.Fate == Final:
		v.Fate = Refused
	case sent && (!first || v.Fate == Refused):
		v.Fate = Unknown
	}
	return v
}
