// Package cli implements the commands of the sheaf binary, without their flags. It calls a server, prints results, and
// imports and exports trees. Commands return errors. Only main prints errors and chooses the exit code (ExitCode).
package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
)

// These are the exit codes of all commands.
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNotFound = 3
	exitNotBlank = 4 // the operator knows this code as LookNotBlank (internal/kube/workload)
	exitLostData = 5 // the operator knows this code as EtcdLostData (internal/kube/workload)
)

// coded wraps an error and gives it a specific exit code.
type coded struct {
	Code int
	Err  error
}

func (e *coded) Error() string { return e.Err.Error() }
func (e *coded) Unwrap() error { return e.Err }

// Usagef returns an error for wrong usage of a command, with exit code 2.
func Usagef(format string, args ...any) error {
	return &coded{Code: exitUsage, Err: fmt.Errorf(format, args...)}
}

// countMax is the maximum value of a concurrency flag. A higher one would help neither disks nor servers.
const countMax = 1024

// Concurrency validates the value n of a concurrency flag, and replaces 0 with normal, the default.
func Concurrency(flag string, n *int, normal int) error { return count(flag, n, normal) }

// count validates the value n of a concurrency flag, and replaces 0 with normal, the default.
func count(flag string, n *int, normal int) error {
	if *n < 0 || *n > countMax {
		return Usagef("--%s %d: must be 1 to %d, or 0 for %d", flag, *n, countMax, normal)
	}
	if *n == 0 {
		*n = normal
	}
	return nil
}

// NotFoundf returns an error for a missing object, with exit code 3.
func NotFoundf(format string, args ...any) error {
	return &coded{Code: exitNotFound, Err: fmt.Errorf(format, args...)}
}

// NotBlankf returns an error for a disk that is not blank, with exit code 4.
func NotBlankf(format string, args ...any) error {
	return &coded{Code: exitNotBlank, Err: fmt.Errorf(format, args...)}
}

// LostData returns err with exit code 5, which means that the data of a process is lost.
func LostData(err error) error { return &coded{Code: exitLostData, Err: err} }

// ExitCode returns the exit code of a command that ended with err. A gRPC status for an invalid request counts as
// wrong usage.
func ExitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if own, ok := errors.AsType[*coded](err); ok {
		return own.Code
	}
	if s, ok := status.FromError(err); ok {
		switch s.Code() {
		case codes.NotFound:
			return exitNotFound
		case codes.InvalidArgument:
			return exitUsage
		}
	}
	return exitFailed
}

// Describe returns human-readable text for an error. For a gRPC status, the text has its code, reason, message, field
// violations and, if possible, a hint at the remedy.
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
	if ended := endOf(carrier); ended != nil && s.Code() == codes.Unavailable {
		after += fmt.Sprintf(" (stopped waiting: %v)", ended)
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
	if errors.Is(err, client.ErrOutcomeUnknown) && infoOf(s).GetReason() != reason.OutcomeUnknown {
		words = append(words, "an earlier attempt may have been applied")
	}
	if hint := hintFor(s, server); hint != "" {
		words = append(words, hint)
	}
	return strings.ReplaceAll(strings.Join(words, ": "), "\n", "; ") // if errors were joined, their text has several lines
}

// endOf returns the context error that ended a call, or nil if no context error ended it.
func endOf(err error) error {
	for _, end := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, end) {
			return end
		}
	}
	return nil
}

// hintFor returns a remedy for errors whose messages name none, or "" if it has no hint.
func hintFor(s *status.Status, server string) string {
	switch {
	case infoOf(s).GetReason() == reason.GroupFailed:
		return "`sheaf status` lists every group that failed, `sheaf verify DIR` reads what is on a volume"
	case s.Code() != codes.Unavailable || !strings.Contains(s.Message(), "connection error"),
		infoOf(s).GetReason() != "": // the server has answered, but it could not connect to another process
		return ""
	// A server answers, but it does not use gRPC. A process that has just ended would reset the connection instead.
	case strings.Contains(s.Message(), "server preface: http2:"):
		return fmt.Sprintf(
			"what answers at %s does not speak gRPC: give --server the address of a gateway, not that of --http", server)
	}
	if hint := hintForTLS(s.Message()); hint != "" {
		return hint
	}
	if strings.Contains(s.Message(), "error reading server preface: ") { // the server has just ended, or it requires TLS
		return fmt.Sprintf(
			"nobody answers at %s in plaintext: start `sheaf dev`, give --server, or, where the server speaks TLS, give --ca, "+
				"--cert and --key", server)
	}
	return fmt.Sprintf("nobody answers at %s: start `sheaf dev`, or give --server", server)
}

// hintForTLS returns a remedy if only one end of a connection uses TLS, or if one end does not trust the other end. It
// returns "" if the message has another cause. It matches texts of crypto/tls and crypto/x509.
func hintForTLS(message string) string {
	for _, one := range []struct{ says, hint string }{
		{"tls: first record does not look like a TLS handshake",
			"the server speaks no TLS: leave out --ca, --cert and --key, and see that $" + envCA + " is empty"},
		{"tls: certificate required", "the server wants a certificate: give --cert and --key"},
		{"remote error: tls:",
			"the server refuses the certificate of --cert: see that an authority of the store has issued it, and that it has " +
				"not ended"},
		{"doesn't contain any IP SANs",
			"the server's certificate is for names: give one with --server, such as localhost:7600"},
		{"tls: failed to verify certificate",
			"the server's certificate is none of an authority in --ca, has ended, or is for another address than that of " +
				"--server"},
	} {
		if strings.Contains(message, one.says) {
			return one.hint
		}
	}
	return ""
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

// metadataWords returns the metadata that the message does not contain already. The result may be empty.
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
	slices.Sort(pairs)
	return "(" + strings.Join(pairs, " ") + ")"
}

func infoOf(s *status.Status) *errdetails.ErrorInfo {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

// Retryable reports whether a read, or a write with a request id, may be retried after an error. It may be retried if
// it was certainly not applied, or if the server recognises the repetition.
func Retryable(err error) bool {
	s, ok := status.FromError(err)
	if !ok || err == nil {
		return false
	}
	v := routing.Judge(s, true)
	return v.Fate != routing.Final || v.Later()
}
