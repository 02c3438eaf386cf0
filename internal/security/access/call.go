package access

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
)

// Call is one call in progress, as seen by its handler.
type Call interface {
	// Caller is the identity that made the call.
	Caller() *Caller
	// May reports whether the caller may use a verb in a group; empty: in all groups. The handler asks before it
	// looks anything up. Its errors are those of Compiled.Decide. Safe for concurrent use.
	May(verb Verb, group string) error
	// MayRecord is May for a record of the group. If writes are audited, an allowed put or delete is noted when the
	// call ends, with its outcome. For calls whose messages are decided individually, Wrote reports the writes.
	MayRecord(verb Verb, group string, id int64) error
	// Wrote reports n writes of one message that are done or have failed. what is called during the call, and only
	// if writes are audited. Leave out refused writes: these are noted as refusals.
	Wrote(n int, what func(i int) Written)
	// Can is May without a trace: it writes nothing to the audit log, does not count as a use of a grant, and is
	// not asked again when the table changes during the call.
	Can(verb Verb, group string) error
	// Sees reports whether the caller may do anything at all in a group.
	Sees(group string) bool
	// Sign and Open sign and check a value that the caller sends back. It is valid for the given time; 0: forever.
	// Processes of the store, and gateways that call for a caller, get unsigned values: the gateway signs and
	// checks the values of its callers. Errors are ErrForged or ErrOutdated.
	Sign(value []byte, lasts time.Duration) []byte
	Open(sealed []byte) ([]byte, error)
	// Signs reports whether Sign signs, and Open accepts only signed values.
	Signs() bool
	// Table is the version of the table that decides; 0: there is no table.
	Table() int64
}

type callKey struct{}

// WithCall returns a context that carries a call, so that its handler can ask what the caller may do.
func WithCall(ctx context.Context, call Call) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}

// CallOf returns the call of a context; nil: this process speaks plaintext, so it does not identify callers, and every
// caller may do everything.
func CallOf(ctx context.Context) Call {
	call, _ := ctx.Value(callKey{}).(Call)
	return call
}

// May asks the call of a context. A context without a call allows everything.
func May(ctx context.Context, verb Verb, group string) error {
	if call := CallOf(ctx); call != nil {
		return call.May(verb, group)
	}
	return nil
}

// MayRecord asks the call of a context about a record, if it has one.
func MayRecord(ctx context.Context, verb Verb, group string, id int64) error {
	if call := CallOf(ctx); call != nil {
		return call.MayRecord(verb, group, id)
	}
	return nil
}

// Written is a write with its outcome.
type Written struct {
	Verb  Verb // NoVerb: nothing to note
	Group string
	ID    int64
	Code  codes.Code
}
