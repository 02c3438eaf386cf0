package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/call/reason"
	"sheaf.dev/sheaf/internal/call/routing"
)

// What errors.Is finds in the errors of this package. Every error of a call is an *Error.
var (
	// ErrNotFound: there is no such record, version or group. Error.Reason tells which.
	ErrNotFound = errors.New("not found")
	// ErrGroupNotFound: the group of Named routing does not exist. It is also ErrNotFound.
	ErrGroupNotFound = errors.New("group not found")
	// ErrVersionNotFound: the record has no such version, or retention has dropped it. It is also ErrNotFound.
	ErrVersionNotFound = errors.New("version not found")
	// ErrVersionMismatch: the record's version is not that of IfVersion; Error.Version holds the current one.
	ErrVersionMismatch = errors.New("version mismatch")
	// ErrExists: IfAbsent was asked for and there is a record; Error.Version holds its version.
	ErrExists = errors.New("record exists")
	// ErrInvalid: the request cannot be; the message names the field.
	ErrInvalid = errors.New("invalid argument")
	// ErrTooLarge: the record has more bytes than GetOptions.BytesMax. Use Download.
	ErrTooLarge = errors.New("record too large")
	// ErrDiskFull: the volume is at its reserve. Reads and deletes work.
	ErrDiskFull = errors.New("disk full")
	// ErrOverloaded: the server is at one of its limits (also of memory or groups).
	ErrOverloaded = errors.New("overloaded")
	// ErrMemoryFull: the server is at its limit of memory: it takes no writes that need more. It is also ErrOverloaded.
	ErrMemoryFull = errors.New("memory full")
	// ErrGroupLimit: the store has as many groups as it may have. It is also ErrOverloaded.
	ErrGroupLimit = errors.New("group limit")
	// ErrQuotaExceeded: a quota of the tenant whose group it is, is used up; Error.Metadata names tenant, quota and limit.
	// With RetryAfter above 0 it is that of a rate, and the time of the call has ended before it could be repeated; else
	// records must be deleted, or the quota raised. It is not ErrOverloaded.
	ErrQuotaExceeded = errors.New("quota exceeded")
	// ErrHashRouting: the groups of the store are fixed, none can be made.
	ErrHashRouting = errors.New("hash routing")
	// ErrUnavailable: nobody could answer inside the deadline, also where the last one who was asked named another
	// (Error.Reason NOT_LEADER or WRONG_SHARD). A write was surely not applied.
	ErrUnavailable = errors.New("unavailable")
	// ErrGroupFailed: the group cannot be loaded where it is, and of its other copies no majority is left. The message
	// says which, where and why. Waiting does not help: somebody has to mend it. A write was surely not applied. It is
	// not ErrUnavailable.
	ErrGroupFailed = errors.New("group failed")
	// ErrOutcomeUnknown: the write may or may not have been applied. Repeat it with the same RequestID to know. An
	// error can be this and another at once: after an attempt without an answer, ErrOverloaded or ErrDiskFull of the
	// next one says nothing of the first.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrRequestIDReused: the RequestID is that of another write (another record or data, or a delete). Nothing was
	// written.
	ErrRequestIDReused = errors.New("request id reused")
	// ErrDataLoss: stored bytes are bad, or bytes were changed on their way.
	ErrDataLoss = errors.New("data loss")
	// ErrCursorExpired: the snapshot of a scan is gone. Begin the scan again.
	ErrCursorExpired = errors.New("cursor expired")
	// ErrBadRange: the offset of a download is behind the end of the record.
	ErrBadRange = errors.New("bad range")
	// ErrPermissionDenied: the caller may not do that in that group. It says nothing about whether the group exists.
	ErrPermissionDenied = errors.New("permission denied")
	// ErrUnauthenticated: the server does not know the caller, or does not take the token.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrClosed: the client or the batcher was closed.
	ErrClosed = errors.New("closed")
)

// Error is the failure of a call.
type Error struct {
	// Op says what was done to what, as "put 42".
	Op string
	// Code is the canonical gRPC code.
	Code codes.Code
	// Reason as listed with RecordService in record.proto; empty: none was given.
	Reason string
	// Message is what the server said.
	Message string
	// Version is the record's current version, with ErrVersionMismatch (empty: there is no record) and ErrExists.
	Version string
	// RetryAfter is what the server asks to wait; 0: nothing was said.
	RetryAfter time.Duration
	// Metadata of the reason, as group, segment and offset of damage.
	Metadata map[string]string

	doubtful bool // a write that may have been applied
	err      error
	ended    error // why no attempt follows: that of the context that has ended; nil: it has not
}

// Error implements error.
func (e *Error) Error() string {
	if e.Reason != "" {
		return fmt.Sprintf("sheaf: %s: %s: %s", e.Op, e.Reason, e.Message)
	}
	return fmt.Sprintf("sheaf: %s: %s: %s", e.Op, e.Code, e.Message)
}

// Unwrap gives the error below, often a gRPC status.
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
	if err != nil { // only where the code is OK
		return st
	}
	return full
}

// Is says which of the variables above an error is.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrOutcomeUnknown:
		return e.doubtful || e.Reason == reason.OutcomeUnknown
	case ErrNotFound:
		return e.Code == codes.NotFound
	case ErrGroupNotFound:
		return e.Reason == reason.GroupNotFound
	case ErrVersionNotFound:
		return e.Reason == reason.VersionNotFound
	case ErrMemoryFull:
		return e.Reason == reason.MemoryFull
	case ErrGroupLimit:
		return e.Reason == reason.GroupLimit
	case ErrHashRouting:
		return e.Reason == reason.HashRouting
	case ErrVersionMismatch:
		return e.Reason == reason.VersionMismatch
	case ErrExists:
		return e.Code == codes.AlreadyExists
	case ErrPermissionDenied:
		return e.Code == codes.PermissionDenied
	case ErrUnauthenticated:
		return e.Code == codes.Unauthenticated
	case ErrInvalid:
		return e.Code == codes.InvalidArgument
	case ErrRequestIDReused:
		return e.Reason == reason.RequestIDReused
	case ErrTooLarge:
		return e.Reason == reason.UseDownload || e.Reason == reason.UseUpload
	case ErrDiskFull:
		return e.Reason == reason.DiskFull
	case ErrOverloaded:
		return e.Code == codes.ResourceExhausted && e.Reason != reason.DiskFull && e.Reason != reason.QuotaExceeded
	case ErrQuotaExceeded:
		return e.Reason == reason.QuotaExceeded
	case ErrUnavailable:
		elsewhere := e.Reason == reason.NotLeader || e.Reason == reason.WrongShard || e.Reason == reason.NotServing
		return (e.Code == codes.Unavailable || elsewhere) && !e.doubtful
	case ErrGroupFailed:
		return e.Reason == reason.GroupFailed
	case ErrDataLoss:
		return e.Code == codes.DataLoss
	case ErrCursorExpired:
		return e.Reason == reason.CursorExpired
	case ErrBadRange:
		return e.Reason == reason.BadRange
	case context.DeadlineExceeded:
		return e.Code == codes.DeadlineExceeded || e.ended == target
	case context.Canceled:
		return e.Code == codes.Canceled || e.ended == target
	}
	return false
}

const reasonChecksum = "CHECKSUM"

// newError describes the failure of a call. doubtful: it is a write that may have been applied.
func newError(op string, err error, doubtful bool) *Error {
	if made, ok := errors.AsType[*Error](err); ok {
		return made
	}
	st := status.Convert(err)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		st = status.FromContextError(err)
	}
	v := routing.Judge(st, true)
	return &Error{
		Op: op, Code: st.Code(), Reason: v.Reason, Message: st.Message(), RetryAfter: v.Wait,
		Metadata: v.Info, Version: v.Info["version"], doubtful: doubtful, err: err,
	}
}

// checksumError says that bytes are not those that were sent.
func checksumError(op string, got, want uint32) *Error {
	return &Error{
		Op: op, Code: codes.DataLoss, Reason: reasonChecksum,
		Message: fmt.Sprintf("the data's CRC32C is %08x, it should be %08x: bytes were changed on their way", got, want),
	}
}
