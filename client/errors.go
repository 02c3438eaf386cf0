package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
)

// These variables are for use with errors.Is. Every error that a call returns is an *Error.
var (
	// ErrNotFound means that the record, version or group does not exist. Error.Reason says which.
	ErrNotFound = errors.New("not found")
	// ErrGroupNotFound means that the group does not exist, in a store with Named routing. The error also matches
	// ErrNotFound.
	ErrGroupNotFound = errors.New("group not found")
	// ErrVersionNotFound means that the record has no such version, or that the version is no longer retained. The
	// error also matches ErrNotFound.
	ErrVersionNotFound = errors.New("version not found")
	// ErrVersionMismatch means that the record's version differs from IfVersion. Error.Version holds the current
	// version.
	ErrVersionMismatch = errors.New("version mismatch")
	// ErrExists means that IfAbsent was set and the record exists. Error.Version holds the record's version.
	ErrExists = errors.New("record exists")
	// ErrInvalid means that the request is not valid. The message names the field.
	ErrInvalid = errors.New("invalid argument")
	// ErrTooLarge means that the record has more bytes than GetOptions.BytesMax. Use Download.
	ErrTooLarge = errors.New("record too large")
	// ErrDiskFull means that the volume has only its reserved space left. Reads and deletes still work.
	ErrDiskFull = errors.New("disk full")
	// ErrOverloaded means that the server is at one of its limits, which include memory and the number of groups.
	ErrOverloaded = errors.New("overloaded")
	// ErrMemoryFull means that the server is at its memory limit and refuses writes that need more memory. The error
	// also matches ErrOverloaded.
	ErrMemoryFull = errors.New("memory full")
	// ErrGroupLimit means that the store has reached its maximum number of groups. The error also matches
	// ErrOverloaded.
	ErrGroupLimit = errors.New("group limit")
	// ErrQuotaExceeded means that the tenant that owns the group has used up a quota. Error.Metadata names the tenant,
	// the quota and its limit. If Error.RetryAfter is above 0, the quota is a rate quota, and the call ran out of time
	// before it could be retried. Otherwise delete records or raise the quota. The error does not match ErrOverloaded.
	ErrQuotaExceeded = errors.New("quota exceeded")
	// ErrHashRouting means that the store uses Hash routing, so its groups are fixed and none can be created.
	ErrHashRouting = errors.New("hash routing")
	// ErrGroupNotEmpty means that the group was not deleted, because it is not empty.
	ErrGroupNotEmpty = errors.New("group not empty")
	// ErrUnavailable means that no server could answer before the deadline. The call also fails with ErrUnavailable if
	// the last response referred to another server (Error.Reason NOT_LEADER or WRONG_SHARD). A write was certainly not
	// applied.
	ErrUnavailable = errors.New("unavailable")
	// ErrGroupFailed means that the group cannot be loaded on its shard, and that its other copies are not a majority.
	// The message names the group, the shard and the reason. Waiting does not help, because an administrator has to
	// repair the group. A write was certainly not applied. The error does not match ErrUnavailable.
	ErrGroupFailed = errors.New("group failed")
	// ErrOutcomeUnknown means that the write may or may not have been applied. To find out, repeat the write with the
	// same RequestID. An error can match both this variable and one of the others. For example, if the first attempt
	// got no response and the next one failed with ErrOverloaded, the error matches both variables, because the second
	// failure says nothing about the first attempt.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrRequestIDReused means that the RequestID was used for a different write, which may be a put to another record,
	// a put with other data, or a delete. Nothing was written.
	ErrRequestIDReused = errors.New("request id reused")
	// ErrDataLoss means that stored bytes are damaged, or that bytes were changed in transit.
	ErrDataLoss = errors.New("data loss")
	// ErrCursorExpired means that the snapshot of a scan no longer exists. Start the scan again.
	ErrCursorExpired = errors.New("cursor expired")
	// ErrViewExpired means that a view was closed or has expired, or that what it needs of a group is gone. Error.Metadata
	// names the view.
	ErrViewExpired = errors.New("view expired")
	// ErrBadRange means that a download's offset is beyond the end of the record.
	ErrBadRange = errors.New("bad range")
	// ErrPermissionDenied means that the caller is not permitted to use the operation in the group. The error does not
	// reveal whether the group exists.
	ErrPermissionDenied = errors.New("permission denied")
	// ErrUnauthenticated means that the server cannot identify the caller, or rejects the token.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrClosed means that the client or the batcher was closed.
	ErrClosed = errors.New("closed")
)

// Error is the failure of a call.
type Error struct {
	// Op names the operation and its object, for example "put 42".
	Op string
	// Code is the canonical gRPC code.
	Code codes.Code
	// Reason is one of the reasons listed with RecordService in record.proto. It is empty if the server gave none.
	Reason string
	// Message is the server's message.
	Message string
	// Version is the record's current version. It is set with ErrVersionMismatch and with ErrExists. With
	// ErrVersionMismatch, it is empty if the record does not exist.
	Version string
	// RetryAfter is the wait that the server asks for. It is 0 if the server asks for none.
	RetryAfter time.Duration
	// Metadata contains details of the reason, such as the group, the segment and the offset of damaged data.
	Metadata map[string]string

	doubtful bool // whether the write may have been applied
	err      error
	ended    error // error of the context that ended the call, or nil if the context had not ended
}

// Error implements error.
func (e *Error) Error() string {
	if e.Reason != "" {
		return fmt.Sprintf("sheaf: %s: %s: %s", e.Op, e.Reason, e.Message)
	}
	return fmt.Sprintf("sheaf: %s: %s: %s", e.Op, e.Code, e.Message)
}

// Unwrap returns the underlying error, often a gRPC status.
func (e *Error) Unwrap() error { return e.err }

// GRPCStatus lets status.FromError find the status.
func (e *Error) GRPCStatus() *status.Status {
	if st, ok := status.FromError(e.err); ok && e.err != nil {
		return st
	}
	st := status.New(e.Code, e.Message)
	if e.Reason == "" {
		return st
	}
	full, err := st.WithDetails(&errdetails.ErrorInfo{Domain: reason.Domain, Reason: e.Reason, Metadata: e.Metadata})
	if err != nil { // happens only if the code is OK
		return st
	}
	return full
}

// matches lists the variables that an error matches by its reason or code alone.
var matches = []struct {
	target error
	reason string     // empty matches any reason
	code   codes.Code // OK matches any code
}{
	{target: ErrNotFound, code: codes.NotFound},
	{target: ErrGroupNotFound, reason: reason.GroupNotFound},
	{target: ErrVersionNotFound, reason: reason.VersionNotFound},
	{target: ErrVersionMismatch, reason: reason.VersionMismatch},
	{target: ErrExists, code: codes.AlreadyExists},
	{target: ErrInvalid, code: codes.InvalidArgument},
	{target: ErrDiskFull, reason: reason.DiskFull},
	{target: ErrMemoryFull, reason: reason.MemoryFull},
	{target: ErrGroupLimit, reason: reason.GroupLimit},
	{target: ErrQuotaExceeded, reason: reason.QuotaExceeded},
	{target: ErrHashRouting, reason: reason.HashRouting},
	{target: ErrGroupNotEmpty, reason: reason.GroupNotEmpty},
	{target: ErrGroupFailed, reason: reason.GroupFailed},
	{target: ErrRequestIDReused, reason: reason.RequestIDReused},
	{target: ErrDataLoss, code: codes.DataLoss},
	{target: ErrCursorExpired, reason: reason.CursorExpired},
	{target: ErrViewExpired, reason: reason.ViewExpired},
	{target: ErrBadRange, reason: reason.BadRange},
	{target: ErrPermissionDenied, code: codes.PermissionDenied},
	{target: ErrUnauthenticated, code: codes.Unauthenticated},
}

// Is reports whether the error matches target, which is one of the variables above.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrOutcomeUnknown:
		return e.doubtful || e.Reason == reason.OutcomeUnknown || e.Metadata["outcome"] == "unknown"
	case ErrTooLarge:
		return e.Reason == reason.UseDownload || e.Reason == reason.UseUpload
	case ErrOverloaded:
		return e.Code == codes.ResourceExhausted && e.Reason != reason.DiskFull && e.Reason != reason.QuotaExceeded
	case ErrUnavailable:
		elsewhere := e.Reason == reason.NotLeader || e.Reason == reason.WrongShard || e.Reason == reason.NotServing
		return (e.Code == codes.Unavailable || elsewhere) && !e.doubtful
	case context.DeadlineExceeded:
		return e.Code == codes.DeadlineExceeded || e.ended == target
	case context.Canceled:
		return e.Code == codes.Canceled || e.ended == target
	}
	for _, m := range matches {
		if m.target == target {
			return (m.reason == "" || m.reason == e.Reason) && (m.code == codes.OK || m.code == e.Code)
		}
	}
	return false
}

const reasonChecksum = "CHECKSUM"

// newError returns an error that says that a call failed, and why. The argument doubtful means that the call is a write
// that may have been applied.
func newError(op string, err error, doubtful bool) *Error {
	if made, ok := errors.AsType[*Error](err); ok {
		return made
	}
	st := status.Convert(err)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		st = status.FromContextError(err)
	}
	v := routing.Judge(st, true)
	said := st.Message()
	if doubtful && v.Reason != reason.OutcomeUnknown {
		said += ": the write may have been done by an earlier attempt: repeat it with its request id"
	}
	return &Error{
		Op: op, Code: st.Code(), Reason: v.Reason, Message: said, RetryAfter: v.Wait,
		Metadata: v.Info, Version: v.Info["version"], doubtful: doubtful, err: err,
	}
}

// checksumError returns the error for data whose checksum on arrival differs from the checksum that the sender gave.
func checksumError(op string, got, want uint32) *Error {
	return &Error{
		Op: op, Code: codes.DataLoss, Reason: reasonChecksum,
		Message: fmt.Sprintf("the data's CRC32C is %08x, it should be %08x: bytes were changed on their way", got, want),
	}
}
