// Package answer creates the errors that a shard returns to its callers: gRPC codes, reasons and details.
package answer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// This file chooses the gRPC codes and reasons of most errors. For other errors, the callers of Fail choose them. All
// codes and reasons are listed in api/sheaf/record/v1/record.proto.

// Error is a gRPC status with a code other than OK.
type Error struct {
	Code       codes.Code
	Reason     string // if empty, there is no ErrorInfo
	Message    string
	Metadata   map[string]string
	RetryAfter time.Duration // if 0, there is no RetryInfo
	Violations []*errdetails.BadRequest_FieldViolation
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// GRPCStatus returns the error as a gRPC status; package status looks for this method.
func (e *Error) GRPCStatus() *status.Status {
	st := status.New(e.Code, e.Message)
	var details []protoadapt.MessageV1
	if e.Reason != "" {
		details = append(details, &errdetails.ErrorInfo{Reason: e.Reason, Domain: reason.Domain, Metadata: e.Metadata})
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	if len(e.Violations) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: e.Violations})
	}
	if len(details) == 0 {
		return st
	}
	with, err := st.WithDetails(details...)
	if err != nil {
		return st // even without details, the code and the message describe the error
	}
	return with
}

// Fail creates an Error. If the reason is empty, the Error has no ErrorInfo.
func Fail(code codes.Code, reason, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// with sets the metadata of the ErrorInfo.
func (e *Error) with(metadata map[string]string) *Error {
	e.Metadata = metadata
	return e
}

// after sets the time after which the caller may retry.
func (e *Error) after(retry time.Duration) *Error {
	e.RetryAfter = retry
	return e
}

// Violations collects the errors in the fields of a request.
type Violations []*errdetails.BadRequest_FieldViolation

// Add adds an error in one field.
func (v *Violations) Add(field, format string, args ...any) {
	*v = append(*v, &errdetails.BadRequest_FieldViolation{Field: field, Description: fmt.Sprintf(format, args...)})
}

// Err returns the error for all violations, or nil if there are none.
func (v Violations) Err() error {
	if len(v) == 0 {
		return nil
	}
	message := v[0].GetField() + ": " + v[0].GetDescription()
	if len(v) > 1 {
		message += fmt.Sprintf(" (and %d more)", len(v)-1)
	}
	return &Error{Code: codes.InvalidArgument, Message: message, Violations: v}
}

// Or returns the error for the wrong fields, if there are any, and otherwise the error that is passed to it. Errors
// in the request itself are thus reported first.
func (v Violations) Or(err error) error {
	if invalid := v.Err(); invalid != nil {
		return invalid
	}
	return err
}

// Invalid returns the error for one wrong field.
func Invalid(field, format string, args ...any) error {
	var v Violations
	v.Add(field, format, args...)
	return v.Err()
}

// Where names the target of a call in error messages.
type Where struct {
	Group string
	ID    int64
}

// String names the record.
func (w Where) String() string { return "group " + w.Group + ", record " + strconv.FormatInt(w.ID, 10) }

// Of translates an error from a shard's packages into the error for the caller. An *Error is returned unchanged.
func Of(err error, w Where) error {
	if err == nil {
		return nil
	}
	if answer, ok := errors.AsType[*Error](err); ok {
		return answer
	}
	if exceeded, ok := errors.AsType[*quota.Exceeded](err); ok {
		return quotaError(exceeded)
	}
	if errors.Is(err, quota.ErrStopping) {
		return Stopping()
	}
	// The unknown outcome is checked first, because the error may also wrap the reason why the outcome is not known.
	if errors.Is(err, replica.ErrOutcomeUnknown) {
		return Fail(codes.Unknown, reason.OutcomeUnknown,
			"%v: the write may or may not have been applied; repeat it with its request_id: %v", w, err)
	}
	if condition, ok := errors.AsType[*replica.ConditionError](err); ok {
		return conditionError(condition, w)
	}
	if errors.Is(err, replica.ErrReused) {
		return reusedError(err, w)
	}
	if damage, ok := errors.AsType[*format.DamageError](err); ok {
		return damageError(damage, w)
	}
	if e := knownError(format.MarkShortage(err), w); e != nil {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return status.FromContextError(err).Err()
	}
	if st, ok := status.FromError(err); ok {
		return st.Err()
	}
	return Fail(codes.Internal, "", "%v: %v", w, err)
}

func knownError(err error, w Where) error {
	for _, k := range knownErrors {
		if errors.Is(err, k.err) {
			answer := Fail(k.code, k.reason, "%v: %v%s", w, err, k.advice)
			if k.reason == reason.GroupFailed {
				answer.Metadata = map[string]string{"group": w.Group}
			}
			return answer
		}
	}
	return nil
}

var knownErrors = []struct {
	err    error
	code   codes.Code
	reason string
	advice string
}{
	{group.ErrNotFound, codes.NotFound, reason.RecordNotFound, ""},
	{group.ErrVersionNotFound, codes.NotFound, reason.VersionNotFound, ""},
	// While the free space is unknown, the error has the reason NO_LEADER, so that callers retry. If the group has
	// several copies, another member will soon lead it.
	{volume.ErrFreeSpaceUnknown, codes.Unavailable, reason.NoLeader, "; see to the disk of this shard"},
	{volume.ErrFull, codes.ResourceExhausted, reason.DiskFull, "; delete records, compact, or enlarge the volume"},
	{format.ErrNoSpace, codes.ResourceExhausted, reason.DiskFull, "; delete records, compact, or enlarge the volume"},
	{syscall.ENOSPC, codes.ResourceExhausted, reason.DiskFull, "; delete records, compact, or enlarge the volume"},
	{syscall.EDQUOT, codes.ResourceExhausted, reason.DiskFull, "; raise the quota"},
	{format.ErrShortage, codes.ResourceExhausted, reason.Overloaded,
		"; raise the limit of open files (ulimit -n, LimitNOFILE), or see what else on the machine uses them up"},
	{group.ErrMemory, codes.ResourceExhausted, reason.MemoryFull,
		"; raise the memory limit, or delete records and compact"},
	{replica.ErrOverloaded, codes.ResourceExhausted, reason.Overloaded, "; send less at a time and try again"},
	{group.ErrCursorExpired, codes.OutOfRange, reason.CursorExpired, "; begin the scan again"},
	{replica.ErrNoLeader, codes.Unavailable, reason.NoLeader, ""},
	{replica.ErrFailed, codes.FailedPrecondition, reason.GroupFailed, "; see to its volume and start its shard again"},
	{replica.ErrStopping, codes.Unavailable, reason.Stopping, ""},
	{format.ErrClosed, codes.Unavailable, reason.Stopping, ""},
	{cursor.ErrBad, codes.InvalidArgument, "", ""},
	// errNotStored must come after more specific errors, such as the error about a full volume, because the first match
	// counts.
	{errNotStored, codes.Unavailable, reason.NoLeader, "; see to the disk of this shard"},
}

// errNotStored means that the file of a blob could not be written. Nothing refers to the file.
var errNotStored = errors.New("the data cannot be stored")

// Storing marks an error as one that occurred while a blob's file was written.
func Storing(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errNotStored, err)
}

// SurelyNotApplied reports whether a write's error proves that the write was not applied and will not be applied.
func SurelyNotApplied(err error) bool {
	switch CodeOf(err) {
	case codes.Aborted, codes.AlreadyExists, codes.Unavailable, codes.ResourceExhausted, codes.InvalidArgument:
		return true
	default:
		return false
	}
}

// quotaError returns the error for a call that exceeds a quota. The call had no effect.
func quotaError(e *quota.Exceeded) error {
	return Fail(codes.ResourceExhausted, reason.QuotaExceeded, "%v", e).after(e.RetryAfter).with(map[string]string{
		"tenant": e.Tenant, "quota": string(e.Quota), "limit": strconv.FormatInt(e.Limit, 10),
	})
}

// reusedError returns the error for a write whose request id belongs to a different write. The write had no effect.
func reusedError(err error, w Where) error {
	answer := Fail(codes.InvalidArgument, reason.RequestIDReused,
		"%v: nothing is written: %v; give each write 16 random bytes of its own", w, err)
	answer.Violations = []*errdetails.BadRequest_FieldViolation{{Field: "request_id", Description: err.Error()}}
	return answer
}

func conditionError(e *replica.ConditionError, w Where) error {
	current := cursor.Version(e.Current)
	answer := Fail(codes.Aborted, reason.VersionMismatch, "%v: the version is not the one of if_version, but %q", w,
		current)
	if errors.Is(e.Err, replica.ErrExists) {
		answer = Fail(codes.AlreadyExists, reason.RecordExists, "%v exists with version %q", w, current)
	} else if e.Current == 0 {
		answer.Message = fmt.Sprintf("%v: there is no record, if_version names one", w)
	}
	answer.Metadata = map[string]string{"version": current}
	return answer
}

// damageError returns the error for a read that found bad bytes in the requested record, or in entries that may
// belong to that record.
func damageError(e *format.DamageError, w Where) error {
	return Fail(codes.DataLoss, reason.Damaged,
		"%v: stored bytes are bad: %v; restore the record, or accept the loss of the group's damage", w, e.Damage,
	).with(map[string]string{
		"group": e.Damage.Group, "segment": e.Damage.File, "offset": strconv.FormatInt(e.Damage.Offset, 10),
	})
}

// ScanDamaged returns the error for a scan that was resumed from a cursor beyond damaged entries. The scan ends with
// this error after all intact records have been sent.
func ScanDamaged() error {
	return Fail(codes.DataLoss, reason.Damaged,
		"damaged entries were left out of the scan before the cursor; Verify names them")
}

// Stopping returns the error for calls that arrive while the shard stops.
func Stopping() error {
	return Fail(codes.Unavailable, reason.Stopping, "the shard is stopping; go to another, or come back").
		after(time.Second)
}

// SlowReader returns the error for a stream that is aborted because its caller did not read a message within the time
// limit, which is passed as most.
func SlowReader(most time.Duration) error {
	return Fail(codes.Unavailable, reason.SlowReader,
		"a message of the answer was not taken for %v: read faster, or go on from the last cursor", most)
}

// Overloaded returns the error for a call that would exceed a limit.
func Overloaded(what string, limit int64) error {
	return Fail(codes.ResourceExhausted, reason.Overloaded, "the shard is at its limit of %d %s; wait and try again",
		limit, what).after(100 * time.Millisecond)
}

// UseUpload returns the error for a Put with more data than a Put accepts.
func UseUpload(bytes int) error {
	return Fail(codes.FailedPrecondition, reason.UseUpload,
		"data has %d bytes, Put takes at most %d: use Upload", bytes, format.DataBytesMax)
}

// PutTooLarge returns the error for a Put whose message was too large to be decoded.
func PutTooLarge(in *message.Bounded) error {
	return Fail(codes.FailedPrecondition, reason.UseUpload,
		"the message has %d bytes, Put takes at most %d of data: use Upload", in.Bytes, format.DataBytesMax)
}

// PartTooLarge returns the error for a message of a stream that was too large to be decoded. The error includes a
// hint, passed as instead, about what the caller should send.
func PartTooLarge(in *message.Bounded, field, instead string) error {
	return Invalid(field, "the message has %d bytes, at most %d are allowed: %s", in.Bytes, in.BytesMax, instead)
}

// UseDownload returns the error for a Get of a record with more data than Get may return.
func UseDownload(w Where, bytes int64) error {
	return Fail(codes.FailedPrecondition, reason.UseDownload,
		"%v has %d bytes, Get gives at most %d: use Download, or metadata_only", w, bytes, format.DataBytesMax)
}

// Loading returns the error for a call to a group that is still loading. The error tells the caller to retry after
// eta, the estimated time until the group serves, but after 30 s at most.
func Loading(group string, eta time.Duration) error {
	return Fail(codes.Unavailable, reason.GroupLoading, "group %s is loading", group).
		after(min(max(eta, 100*time.Millisecond), 30*time.Second))
}

// awaitsPause is the pause that AwaitsCopies asks for. The leader does not know how long another copy takes: the shard
// that fetches it knows.
const awaitsPause = time.Second

// AwaitsCopies returns the error for a write to a restored group that has too few voters to accept writes.
func AwaitsCopies(group string, voters, needed int) error {
	return Fail(codes.Unavailable, reason.GroupLoading, "group %s was restored and has %d of the %d copies from which on "+
		"it accepts writes: it can be read, and the other copies are being made (sheaf moves)", group, voters, needed).
		after(awaitsPause)
}

// Lost returns the error for calls to a group whose data should be on this shard according to etcd, but is not (rule
// 7).
func Lost(group string, err error) error {
	return Fail(codes.DataLoss, reason.Damaged, "group %s: %v", group, err).with(map[string]string{"group": group})
}

// Failed returns the error for calls to a group whose copy on this shard is not loaded and will not be loaded without
// intervention.
func Failed(name, shard string, err error) error {
	if errors.Is(err, group.ErrMemory) {
		return Fail(codes.ResourceExhausted, reason.MemoryFull, "group %s is not loaded: %v", name, err)
	}
	return Fail(codes.FailedPrecondition, reason.GroupFailed,
		"group %s could not be loaded by shard %s: %v; repair or restore it, then start the shard again: calls fail "+
			"until then", name, shard, err).with(map[string]string{"group": name, "shard": shard})
}

// GroupNotFound returns the error for calls to a group that the store does not have.
func GroupNotFound(group string) error {
	return Fail(codes.NotFound, reason.GroupNotFound, "group %s does not exist: create it first", group)
}

// WrongShard returns an error that names the shard to call instead. address is empty if that shard is unknown.
func WrongShard(group, address string, epoch uint64) error {
	return Fail(codes.FailedPrecondition, reason.WrongShard, "group %s is not on this shard (routing epoch %d)", group,
		epoch).with(goTo(address, epoch))
}

// NotLeader returns an error that names the shard that leads a group. address is empty if that shard is unknown.
func NotLeader(group, address string, epoch uint64) error {
	return Fail(codes.FailedPrecondition, reason.NotLeader, "group %s is led by another shard", group).
		with(goTo(address, epoch))
}

// goTo returns the error metadata that directs a caller to another shard.
func goTo(address string, epoch uint64) map[string]string {
	return map[string]string{"address": address, "routing_epoch": strconv.FormatUint(epoch, 10)}
}

// RangeError returns the error for a Download that begins after the end of the data.
func RangeError(w Where, offset, size int64) error {
	return Fail(codes.OutOfRange, reason.BadRange, "%v has %d bytes: offset_bytes is %d", w, size, offset)
}

// Panicked returns the error for a call whose handler panicked.
func Panicked(method string) error {
	return Fail(codes.Internal, "", "%s: a bug stopped this call; the shard's log has the trace", method)
}

// NotHere returns the error for a method that only gateways serve.
func NotHere(method string) error {
	return Fail(codes.Unimplemented, "", "%s is not served by a shard: ask the gateway", method)
}

// CodeOf returns the code that the caller sees.
func CodeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if answer, ok := err.(*Error); ok { //nolint:errorlint // this is a hot path; package status handles wrapped errors
		return answer.Code
	}
	return status.Code(err)
}
