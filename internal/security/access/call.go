package access

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
)

// Call is one call under way, as its handler sees it.
type Call interface {
	// Caller is who has made it.
	Caller() *Caller
	// May tells whether the caller may use a verb in a group; empty: in all groups. It is asked before anything is
	// looked up. Errors as of Compiled.Decide. Safe for concurrent use.
	May(verb Verb, group string) error
	// MayRecord is May for a record of the group. Where writes are noted, a put or delete that is allowed is noted when
	// the call ends, with its outcome; those of a call whose messages are decided one by one Wrote tells of.
	MayRecord(verb Verb, group string, id int64) error
	// Wrote tells of n writes of one message that are done or have failed. what is called during the call, and only where
	// writes are noted. Those that were refused are left out: they are noted as that.
	Wrote(n int, what func(i int) Written)
	// Can is May that is asked out of curiosity: nothing is noted.
	Can(verb Verb, group string) error
	// Sees tells whether the caller may do anything at all in a group.
	Sees(group string) bool
	// Seal and Open sign and check a value that the caller hands back, and which is good for so long, 0: for ever.
	// Calls of processes of the store, and those that a gateway makes for a caller, have values that are not signed:
	// the gateway signs and checks what its callers have. Errors are ErrForged or ErrOutdated.
	Seal(value []byte, lasts time.Duration) []byte
	Open(sealed []byte) ([]byte, error)
	// Signs tells whether Seal signs, and Open takes only what is signed.
	Signs() bool
	// Table is the version of the table that decides; 0: there is none.
	Table() int64
}

type callKey struct{}

// WithCall gives the context of a call that is decided about.
func WithCall(ctx context.Context, call Call) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}

// CallOf gives the call of a context; nil: callers are not known to this process, which speaks plaintext, and all may
// do all.
func CallOf(ctx context.Context) Call {
	call, _ := ctx.Value(callKey{}).(Call)
	return call
}

// May asks the call of a context, where it has one.
func May(ctx context.Context, verb Verb, group string) error {
	if call := CallOf(ctx); call != nil {
		return call.May(verb, group)
	}
	return nil
}

// MayRecord asks the call of a context about a record, where it has one.
func MayRecord(ctx context.Context, verb Verb, group string, id int64) error {
	if call := CallOf(ctx); call != nil {
		return call.MayRecord(verb, group, id)
	}
	return nil
}

// Written is a write with its outcome.
type Written struct {
	Verb  Verb // NoVerb: nothing is to be noted
	Group string
	ID    int64
	Code  codes.Code
}
