// Package cli is what the commands of the sheaf binary do beyond reading their flags: talking to a server, printing,
// importing and exporting trees. Commands return errors; only main prints them and chooses the exit code (ExitCode).
package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/routing"
)

// The exit codes of every command.
const (
	ExitDone     = 0
	ExitFailed   = 1
	ExitUsage    = 2
	ExitNotFound = 3
)

// Error is an error with an exit code of its own.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Usagef says that the command was called wrongly: exit code 2.
func Usagef(format string, args ...any) error {
	return &Error{Code: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// countMax bounds what runs at a time: more helps no disk and no server.
const countMax = 1024

// count checks how many of something run at a time; 0 becomes the normal number.
func count(flag string, n *int, normal int) error {
	if *n < 0 || *n > countMax {
		return Usagef("--%s %d: must be 1 to %d, or 0 for %d", flag, *n, countMax, normal)
	}
	if *n == 0 {
		*n = normal
	}
	return nil
}

// NotFoundf says that what was asked for is not there: exit code 3.
func NotFoundf(format string, args ...any) error {
	return &Error{Code: ExitNotFound, Err: fmt.Errorf(format, args...)}
}

// ExitCode of a command that ended with err. A status of gRPC that blames the request counts as wrong usage.
func ExitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	var own *Error
	if errors.As(err, &own) {
		return own.Code
	}
	if s, ok := status.FromError(err); ok {
		switch s.Code() {
		case codes.NotFound:
			return ExitNotFound
		case codes.InvalidArgument:
			return ExitUsage
		}
	}
	return ExitFailed
}

// Describe turns an error into words for a person: for a status of gRPC its code, reason, message and field violations,
// and what to do where that is known.
func Describe(err error, server string) string {
	var carrier interface {
		error
		GRPCStatus() *status.Status
	}
	if !errors.As(err, &carrier) {
		return err.Error()
	}
	s := carrier.GRPCStatus()
	before, after, found := strings.Cut(err.Error(), carrier.Error())
	if !found {
		before, after = "", ""
	}
	words := []string{before + codeWords(s.Code())}
	if reason := infoOf(s).GetReason(); reason != "" {
		words[0] += " " + reason
	}
	words = append(words, s.Message()+after)
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				if !strings.Contains(s.Message(), v.GetDescription()) {
					words = append(words, v.GetField()+": "+v.GetDescription())
				}
			}
		case *errdetails.ErrorInfo:
			if more := metadataWords(d.GetMetadata(), s.Message()); more != "" {
				words = append(words, more)
			}
		}
	}
	if hint := hintFor(s, server); hint != "" {
		words = append(words, hint)
	}
	return strings.Join(words, ": ")
}

// hintFor says what to do where the message of a status does not; empty: nothing is known.
func hintFor(s *status.Status, server string) string {
	switch {
	case infoOf(s).GetReason() == routing.ReasonGroupFailed:
		return "`sheaf status` lists every group that failed, `sheaf verify DIR` reads what is on a volume"
	case s.Code() != codes.Unavailable || !strings.Contains(s.Message(), "connection error"):
		return ""
	case strings.Contains(s.Message(), "server preface: http2:"): // something answered; a process that just ended resets the connection
		return fmt.Sprintf("what answers at %s does not speak gRPC: give --server the address of a gateway, not that of --http", server)
	}
	return fmt.Sprintf("nobody answers at %s: start `sheaf dev`, or give --server", server)
}

func codeWords(c codes.Code) string {
	var b strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}

// metadataWords are those that a message does not tell already; empty: none.
func metadataWords(metadata map[string]string, message string) string {
	told := strings.FieldsFunc(message, func(r rune) bool { return strings.ContainsRune(" ,;:()\"", r) })
	pairs := make([]string, 0, len(metadata))
	for k, v := range metadata {
		if !slices.Contains(told, v) {
			pairs = append(pairs, k+"="+v)
		}
	}
	if len(pairs) == 0 {
		return ""
	}
	sort.Strings(pairs)
	return "(" + strings.Join(pairs, " ") + ")"
}

// Reason is the reason of the google.rpc.ErrorInfo that a status carries ("DISK_FULL"), or empty.
func Reason(err error) string {
	s, ok := status.FromError(err)
	if !ok {
		return ""
	}
	return infoOf(s).GetReason()
}

func infoOf(s *status.Status) *errdetails.ErrorInfo {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

// Retryable tells whether a write that carries a request id, or a read, may be tried again: surely not applied, or
// recognised when it was.
func Retryable(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	s, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch s.Code() {
	case codes.Unavailable:
		return true
	case codes.Unknown:
		return infoOf(s).GetReason() == "OUTCOME_UNKNOWN"
	case codes.ResourceExhausted:
		return infoOf(s).GetReason() == "OVERLOADED"
	case codes.FailedPrecondition:
		reason := infoOf(s).GetReason()
		return reason == "WRONG_SHARD" || reason == "NOT_LEADER"
	default:
		return false
	}
}
