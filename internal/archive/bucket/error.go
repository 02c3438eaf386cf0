package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
)

// ErrLength means that the content passed to Create does not have the given size. The object was not created.
var ErrLength = errors.New("the content has another length than was said")

// Reason classifies an error from a bucket in one word, for metrics and conditions.
type Reason string

// These are the reasons for errors.
const (
	Away        Reason = "Away"        // nothing answers
	Busy        Reason = "Busy"        // the bucket refuses requests for now, because it receives too many
	Full        Reason = "Full"        // no space is left, or a quota is exhausted
	Credentials Reason = "Credentials" // the credentials are missing, wrong or expired
	Forbidden   Reason = "Forbidden"   // the bucket knows the caller, but does not allow the operation
	NoBucket    Reason = "NoBucket"    // there is no bucket with this name, or it is in another region
	Late        Reason = "Late"        // the call timed out before the bucket responded
	Broken      Reason = "Broken"      // the response is invalid
	Other       Reason = "Other"
)

// advice tells users what to do about an error. A reason without an entry needs no advice beyond the error itself.
var advice = map[Reason]string{
	Away: "check that the bucket's host is reachable from here: the name in the URL, DNS, the network policy, and " +
		"whether the service is up",
	Busy: "the bucket asks for fewer requests: the call can be made again later; if this goes on, raise the " +
		"limits of the bucket's service",
	Full: "free space or raise the quota of the bucket; nothing that an archive needs is deleted to make room",
	Credentials: "check the key or token of the bucket, that it has not ended, and that the clocks of both " +
		"machines agree",
	Forbidden: "allow this account to list, read, create and delete objects below the URL",
	NoBucket:  "create the bucket, or correct its name and region in the URL; Sheaf creates no buckets",
	Late:      "the call can be made again; if this goes on, the bucket or the line to it is too slow",
	Broken: "the call can be made again; if this goes on, something between here and the bucket changes " +
		"answers",
}

// Error is a failed call to a bucket. The outcome of the call is unknown, because a Create or Delete may have taken
// effect.
type Error struct {
	Op     string // the operation, such as create
	Bucket string // the URL without its options
	Object string // name of the object in the bucket; empty if the call did not concern a single object
	Reason Reason
	Err    error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s in %s: %v", e.Op, e.Object, e.Bucket, e.Err)
	if e.Object == "" {
		text = fmt.Sprintf("%s %s: %v", e.Op, e.Bucket, e.Err)
	}
	if hint := advice[e.Reason]; hint != "" {
		text += ": " + hint
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// ReasonOf returns the Reason for an error from a Bucket. If no bucket has classified the error, ReasonOf treats it as
// a file system or connection error. The result is empty for nil, and for fs.ErrExist and fs.ErrNotExist, which are
// results rather than faults.
func ReasonOf(err error) Reason {
	known := func(errs ...error) bool {
		for _, one := range errs {
			if errors.Is(err, one) {
				return true
			}
		}
		return false
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	switch {
	case err == nil || known(fs.ErrExist, fs.ErrNotExist):
		return ""
	case known(context.DeadlineExceeded, context.Canceled):
		return Late
	case known(syscall.ENOSPC, syscall.EDQUOT):
		return Full
	case known(fs.ErrPermission, syscall.EROFS):
		return Forbidden
	case known(syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.EHOSTUNREACH, syscall.ENETUNREACH,
		syscall.ETIMEDOUT, syscall.ESTALE):
		return Away
	case known(io.ErrUnexpectedEOF):
		return Broken
	}
	return Other
}
