package routing

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/call/reason"
)

// Fate says what a failed attempt means for the call.
type Fate int

// The fates.
const (
	Final   Fate = iota // the answer is the answer
	Refused             // surely not applied, and may work later or elsewhere
	Unknown             // may have been applied
)

// Verdict on a failed attempt.
type Verdict struct {
	Fate   Fate
	Reason string            // of our ErrorInfo; SHARD_UNREACHABLE for an error of the transport
	Info   map[string]string // metadata of our ErrorInfo
	Wait   time.Duration     // the server asks for at least this; 0: no wish
	// EndsDoubt: the group's leader gave this answer to a write after it had looked for the request id, so no earlier
	// attempt with that id was applied. All other failures leave open what an earlier attempt did.
	EndsDoubt bool
	// Cut: the end of the call's time ended the attempt, and no server.
	Cut bool
}

// Overloaded tells whether the server had too much to do: the call was not applied, and may be repeated later.
func (v Verdict) Overloaded() bool { return v.Fate == Final && v.Reason == reason.Overloaded }

// Later tells whether the server had too much to do, or the quota of a rate is used up: the call was not applied, and
// may be repeated later. Quotas of what is stored have no Wait: repeating does not help.
func (v Verdict) Later() bool {
	return v.Overloaded() || v.Fate == Final && v.Reason == reason.QuotaExceeded && v.Wait > 0
}

// Judge classifies the error of an attempt. sent says whether the request may have left this process: then an error of
// the transport leaves the outcome unknown.
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
	case code == codes.Unknown && v.Reason == reason.OutcomeUnknown:
		v.Fate = Unknown
	case code == codes.DeadlineExceeded || code == codes.Canceled:
		v.Cut = true
	}
	switch v.Reason {
	case reason.VersionMismatch, reason.RecordExists, reason.RequestIDReused:
		v.EndsDoubt = v.Fate == Final
	}
	return v
}

// JudgeStream is Judge for a message whose stream of writes ended before it was answered. first: it is the first such
// message. The status speaks of that one at most, and where it does not refuse that for good, whatever was sent may
// have been applied.
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
