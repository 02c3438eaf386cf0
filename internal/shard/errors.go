package shard

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
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/message"
	"sheaf.dev/sheaf/internal/replica"
	"sheaf.dev/sheaf/internal/shard/cursor"
	"sheaf.dev/sheaf/internal/volume"
)

// This file alone chooses the gRPC code and the reason of an error; api/sheaf/record/v1/record.proto lists them.

// errorDomain is the domain of every ErrorInfo.
const errorDomain = "sheaf.dev"

// The reasons of an ErrorInfo.
const (
	reasonRecordNotFound  = "RECORD_NOT_FOUND"
	reasonGroupNotFound   = "GROUP_NOT_FOUND"
	reasonVersionNotFound = "VERSION_NOT_FOUND"
	reasonRecordExists    = "RECORD_EXISTS"
	reasonVersionMismatch = "VERSION_MISMATCH"
	reasonGroupLoading    = "GROUP_LOADING"
	reasonGroupFailed     = "GROUP_FAILED"
	reasonNoLeader        = "NO_LEADER"
	reasonNotLeader       = "NOT_LEADER"
	reasonStopping        = "STOPPING"
	reasonDiskFull        = "DISK_FULL"
	reasonMemoryFull      = "MEMORY_FULL"
	reasonOverloaded      = "OVERLOADED"
	reasonUseDownload     = "USE_DOWNLOAD"
	reasonUseUpload       = "USE_UPLOAD"
	reasonWrongShard      = "WRONG_SHARD"
	reasonDamaged         = "DAMAGED"
	reasonCursorExpired   = "CURSOR_EXPIRED"
	reasonBadRange        = "BAD_RANGE"
	reasonOutcomeUnknown  = "OUTCOME_UNKNOWN"
	reasonRequestIDReused = "REQUEST_ID_REUSED"
	reasonSlowReader      = "SLOW_READER"
)

// callError is an answer other than OK.
type callError struct {
	code       codes.Code
	reason     string // empty: no ErrorInfo
	message    string
	metadata   map[string]string
	retryAfter time.Duration // 0: no RetryInfo
	violations []*errdetails.BadRequest_FieldViolation
}

func (e *callError) Error() string { return e.message }

// GRPCStatus makes it a gRPC status; package status looks for this method.
func (e *callError) GRPCStatus() *status.Status {
	st := status.New(e.code, e.message)
	var details []protoadapt.MessageV1
	if e.reason != "" {
		details = append(details, &errdetails.ErrorInfo{Reason: e.reason, Domain: errorDomain, Metadata: e.metadata})
	}
	if e.retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.retryAfter)})
	}
	if len(e.violations) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: e.violations})
	}
	if len(details) == 0 {
		return st
	}
	with, err := st.WithDetails(details...)
	if err != nil {
		return st // the code and the message still say it
	}
	return with
}

func fail(code codes.Code, reason, format string, args ...any) *callError {
	return &callError{code: code, reason: reason, message: fmt.Sprintf(format, args...)}
}

// violations collects what is wrong with the fields of a request.
type violations []*errdetails.BadRequest_FieldViolation

func (v *violations) add(field, format string, args ...any) {
	*v = append(*v, &errdetails.BadRequest_FieldViolation{Field: field, Description: fmt.Sprintf(format, args...)})
}

// err is nil where nothing is wrong.
func (v violations) err() error {
	if len(v) == 0 {
		return nil
	}
	message := v[0].GetField() + ": " + v[0].GetDescription()
	if len(v) > 1 {
		message += fmt.Sprintf(" (and %d more)", len(v)-1)
	}
	return &callError{code: codes.InvalidArgument, message: message, violations: v}
}

func invalid(field, format string, args ...any) error {
	var v violations
	v.add(field, format, args...)
	return v.err()
}

// where names what a call was about, for messages.
type where struct {
	group string
	id    int64
}

func (w where) String() string { return "group " + w.group + ", record " + strconv.FormatInt(w.id, 10) }

// answerError turns an error of the packages below into the answer to the caller. An error that already is an answer
// stays as it is.
func answerError(err error, w where) error {
	var answer *callError
	if err == nil || errors.As(err, &answer) {
		if answer != nil {
			return answer
		}
		return nil
	}
	// The outcome comes first: the error may wrap the reason why it is not known.
	if errors.Is(err, replica.ErrOutcomeUnknown) {
		return fail(codes.Unknown, reasonOutcomeUnknown,
			"%v: the write may or may not have been applied; repeat it with its request_id: %v", w, err)
	}
	var condition *replica.ConditionError
	if errors.As(err, &condition) {
		return conditionError(condition, w)
	}
	if errors.Is(err, replica.ErrReused) {
		return reusedError(err, w)
	}
	var damage *group.DamageError
	if errors.As(err, &damage) {
		return damageError(damage, w)
	}
	if e := knownError(err, w); e != nil {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return status.FromContextError(err).Err()
	}
	if st, ok := status.FromError(err); ok {
		return st.Err()
	}
	return fail(codes.Internal, "", "%v: %v", w, err)
}

func knownError(err error, w where) error {
	for _, k := range knownErrors {
		if errors.Is(err, k.err) {
			answer := fail(k.code, k.reason, "%v: %v%s", w, err, k.advice)
			if k.reason == reasonGroupFailed {
				answer.metadata = map[string]string{"group": w.group}
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
	{group.ErrNotFound, codes.NotFound, reasonRecordNotFound, ""},
	{group.ErrVersionNotFound, codes.NotFound, reasonVersionNotFound, ""},
	{volume.ErrRoom, codes.Unavailable, reasonNoLeader, "; see to the disk of this shard"}, // others lead soon, where there are copies
	{volume.ErrFull, codes.ResourceExhausted, reasonDiskFull, "; delete records, compact, or enlarge the volume"},
	{group.ErrNoSpace, codes.ResourceExhausted, reasonDiskFull, "; delete records, compact, or enlarge the volume"},
	{syscall.ENOSPC, codes.ResourceExhausted, reasonDiskFull, "; delete records, compact, or enlarge the volume"},
	{syscall.EDQUOT, codes.ResourceExhausted, reasonDiskFull, "; raise the quota"},
	{group.ErrMemory, codes.ResourceExhausted, reasonMemoryFull, "; raise the memory limit, or delete records and compact"},
	{replica.ErrOverloaded, codes.ResourceExhausted, reasonOverloaded, "; send less at a time and try again"},
	{group.ErrCursorExpired, codes.OutOfRange, reasonCursorExpired, "; begin the scan again"},
	{replica.ErrNoLeader, codes.Unavailable, reasonNoLeader, ""},
	{replica.ErrFailed, codes.FailedPrecondition, reasonGroupFailed, "; see to its volume and start its shard again"},
	{replica.ErrStopping, codes.Unavailable, reasonStopping, ""},
	{group.ErrClosed, codes.Unavailable, reasonStopping, ""},
	{cursor.ErrBad, codes.InvalidArgument, "", ""},
	{errNotStored, codes.Unavailable, reasonNoLeader, "; see to the disk of this shard"}, // behind what is known better, as that it is full
}

// errNotStored: the file of a blob could not be written. Nothing refers to it.
var errNotStored = errors.New("the data cannot be stored")

// storing notes that an error came of writing a blob's file.
func storing(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errNotStored, err)
}

// surelyNotApplied tells whether an answer to a write rules out that it was or will be applied.
func surelyNotApplied(err error) bool {
	switch codeOf(err) {
	case codes.Aborted, codes.AlreadyExists, codes.Unavailable, codes.ResourceExhausted, codes.InvalidArgument:
		return true
	default:
		return false
	}
}

// reusedError: nothing was written, and what was written under the request id is something else.
func reusedError(err error, w where) error {
	answer := fail(codes.InvalidArgument, reasonRequestIDReused, "%v: nothing is written: %v; give each write 16 random bytes of its own", w, err)
	answer.violations = []*errdetails.BadRequest_FieldViolation{{Field: "request_id", Description: err.Error()}}
	return answer
}

func conditionError(e *replica.ConditionError, w where) error {
	current := cursor.Version(e.Current)
	answer := fail(codes.Aborted, reasonVersionMismatch, "%v: the version is not the one of if_version, but %q", w, current)
	if errors.Is(e.Err, replica.ErrExists) {
		answer = fail(codes.AlreadyExists, reasonRecordExists, "%v exists with version %q", w, current)
	} else if e.Current == 0 {
		answer.message = fmt.Sprintf("%v: there is no record, if_version names one", w)
	}
	answer.metadata = map[string]string{"version": current}
	return answer
}

// damageError: some of the record's bytes, or those of entries that may have been the record's, are bad.
func damageError(e *group.DamageError, w where) error {
	answer := fail(codes.DataLoss, reasonDamaged,
		"%v: stored bytes are bad: %v; restore the record, or accept the loss of the group's damage", w, e.Damage)
	answer.metadata = map[string]string{
		"group":   e.Damage.Group,
		"segment": e.Damage.File,
		"offset":  strconv.FormatInt(e.Damage.Offset, 10),
	}
	return answer
}

// scanDamagedError ends a scan that was resumed behind damage.
func scanDamagedError() error {
	return fail(codes.DataLoss, reasonDamaged,
		"damaged entries were left out of the scan before the cursor; Verify names them")
}

func stoppingError() error {
	answer := fail(codes.Unavailable, reasonStopping, "the shard is stopping; go to another, or come back")
	answer.retryAfter = time.Second
	return answer
}

func slowReaderError(most time.Duration) error {
	return fail(codes.Unavailable, reasonSlowReader, "a message of the answer was not taken for %v: read faster, or go on from the last cursor", most)
}

func overloadedError(what string, limit int64) error {
	answer := fail(codes.ResourceExhausted, reasonOverloaded, "the shard is at its limit of %d %s; wait and try again", limit, what)
	answer.retryAfter = 100 * time.Millisecond
	return answer
}

func useUploadError(bytes int) error {
	return fail(codes.FailedPrecondition, reasonUseUpload,
		"data has %d bytes, Put takes at most %d: use Upload", bytes, group.DataBytesMax)
}

// putTooLargeError is useUploadError for a message that was not even decoded.
func putTooLargeError(in *message.Bounded) error {
	return fail(codes.FailedPrecondition, reasonUseUpload,
		"the message has %d bytes, Put takes at most %d of data: use Upload", in.Bytes, group.DataBytesMax)
}

// partTooLargeError is putTooLargeError for the messages of a stream.
func partTooLargeError(in *message.Bounded, field, instead string) error {
	return invalid(field, "the message has %d bytes, at most %d are allowed: %s", in.Bytes, in.BytesMax, instead)
}

// bounded receives one message, decoded only where it is within the limit.
func (s *Shard) bounded(m proto.Message) *message.Bounded {
	return &message.Bounded{Message: m, BytesMax: s.cfg.Limits.MessageBytesMax}
}

// What to do instead of sending a message that is too large.
const (
	smallerBatches = "send at most 4 MiB of data in one message, and a record above 1 MiB by Upload"
	smallerChunks  = "send chunks of at most 1 MiB"
)

func useDownloadError(w where, bytes int64) error {
	return fail(codes.FailedPrecondition, reasonUseDownload,
		"%v has %d bytes, Get gives at most %d: use Download, or metadata_only", w, bytes, group.DataBytesMax)
}

func loadingError(group string, eta time.Duration) error {
	answer := fail(codes.Unavailable, reasonGroupLoading, "group %s is loading", group)
	answer.retryAfter = min(max(eta, 100*time.Millisecond), 30*time.Second)
	return answer
}

// lostError: etcd says that the data are here, and they are not (rule 7).
func lostError(group string, err error) error {
	answer := fail(codes.DataLoss, reasonDamaged, "group %s: %v", group, err)
	answer.metadata = map[string]string{"group": group}
	return answer
}

// failedError: the copy of the group on this shard is not loaded, and waiting will not change that.
func failedError(name, shard string, err error) error {
	if errors.Is(err, group.ErrMemory) {
		return fail(codes.ResourceExhausted, reasonMemoryFull, "group %s is not loaded: %v", name, err)
	}
	answer := fail(codes.FailedPrecondition, reasonGroupFailed,
		"group %s could not be loaded by shard %s: %v; mend or restore it, then start the shard again: calls fail until then", name, shard, err)
	answer.metadata = map[string]string{"group": name, "shard": shard}
	return answer
}

func groupNotFoundError(group string) error {
	return fail(codes.NotFound, reasonGroupNotFound, "group %s does not exist: create it first", group)
}

// wrongShardError names the shard to go to; address is empty where none is known.
func wrongShardError(group, address string, epoch uint64) error {
	answer := fail(codes.FailedPrecondition, reasonWrongShard, "group %s is not on this shard (routing epoch %d)", group, epoch)
	answer.metadata = map[string]string{"address": address, "routing_epoch": strconv.FormatUint(epoch, 10)}
	return answer
}

// notLeaderError names the shard that leads a group; address is empty where that is not known.
func notLeaderError(group, address string, epoch uint64) error {
	answer := fail(codes.FailedPrecondition, reasonNotLeader, "group %s is led by another shard", group)
	answer.metadata = map[string]string{"address": address, "routing_epoch": strconv.FormatUint(epoch, 10)}
	return answer
}

func rangeError(w where, offset, size int64) error {
	return fail(codes.OutOfRange, reasonBadRange, "%v has %d bytes: offset_bytes is %d", w, size, offset)
}

func panicError(method string) error {
	return fail(codes.Internal, "", "%s: a bug stopped this call; the shard's log has the trace", method)
}

func notHere(method string) error {
	return fail(codes.Unimplemented, "", "%s is not served by a shard: ask the gateway", method)
}
