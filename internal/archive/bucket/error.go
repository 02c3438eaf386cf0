package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
)

// ErrLength says that the content of an object does not have the size that the caller gave. The object was not created.
var ErrLength = errors.New("the content has another length than was said")

// Reason tells in one word why a bucket did not do what it was asked to do. Metrics and conditions carry it.
type Reason string

// These are the reasons.
const (
	Away        Reason = "Away"        // nothing answers
	Busy        Reason = "Busy"        // the bucket refuses for now, because it is asked too much
	Full        Reason = "Full"        // there is no space left, or a quota is used up
	Credentials Reason = "Credentials" // the credentials are missing, wrong, or have ended
	Forbidden   Reason = "Forbidden"   // the bucket knows the caller, and the caller may not do this
	NoBucket    Reason = "NoBucket"    // there is no bucket of this name, or it is elsewhere
	Late        Reason = "Late"        // the time of the call was over before the bucket had answered
	Broken      Reason = "Broken"      // the answer is not what was asked for
	Other       Reason = "Other"
)

// advice says what a person can do. It is empty if the error itself says all that is known.
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

// Error is a failed call to a bucket. Its outcome is unknown: a Create or Delete may have been done.
type Error struct {
	Op     string // such as create
	Bucket string // the URL without its options
	Object string // name in the bucket; empty if the call was about no single object
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

// ReasonOf returns the reason of an error of a Bucket. An error that no bucket has classified is classified as an error
// of a file system or of a connection. The result is empty for nil, for fs.ErrExist and for fs.ErrNotExist, which are
// answers and no faults.
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
