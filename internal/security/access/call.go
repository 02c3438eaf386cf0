package access

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Call is a gRPC call in progress. Its methods say what the caller may do.
type Call interface {
	// Caller returns the identity that made the call.
	Caller() *Caller
	// May returns an error unless the caller may use a verb in a group, or in all groups if the group is empty. The
	// handler calls May before it looks anything up. It returns the same errors as Compiled.Decide. May is safe for
	// concurrent use.
	May(verb Verb, group string) error
	// MayRecord is like May, for a record of the group. If writes are audited, an allowed put or delete is written to the
	// audit log when the call ends, with its outcome. In calls whose messages are decided individually, the handler
	// reports the writes with Wrote instead.
	MayRecord(verb Verb, group string, id int64) error
	// Wrote writes n writes of one message, which have succeeded or failed, to the audit log. If writes are audited,
	// Wrote calls what(i) for each i below n to get write i, and never calls what after it has returned. The caller
	// leaves out refused writes, because the audit log already has their refusals.
	Wrote(n int, what func(i int) Written)
	// Can is like May, but writes nothing to the audit log, and does not count as a use of a grant. The decision is not
	// repeated when the table changes during the call.
	Can(verb Verb, group string) error
	// Sees reports whether the caller may do anything at all in a group.
	Sees(group string) bool
	// Sign signs a value that the caller sends back later, and Open checks it then. The value is valid for the duration
	// lasts, or without a limit if lasts is 0. Processes of the store receive unsigned values. This includes gateways
	// that call on behalf of a caller, because a gateway signs and checks its own callers' values. Open returns
	// ErrForged or ErrOutdated if it does not accept the value.
	Sign(value []byte, lasts time.Duration) []byte
	Open(sealed []byte) ([]byte, error)
	// Signs reports whether Sign signs values and Open accepts only signed values. Otherwise both leave values
	// unchanged.
	Signs() bool
	// Table returns the version of the table of grants used for decisions, or 0 if there is no table.
	Table() int64
}

type callKey struct{}

// WithCall returns a context that carries a call, so that the call's handler can check what the caller may do.
func WithCall(ctx context.Context, call Call) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}

// Everybody is the Call of a caller over plaintext, who cannot be identified. It allows everything and signs nothing.
// The server puts Everybody into the context of each call over plaintext, so that a context without a Call indicates a
// mistake.
var Everybody Call = everybody{}

// everybody implements Call for Everybody.
type everybody struct{}

func (everybody) Caller() *Caller                           { return &Caller{} }
func (everybody) May(Verb, string) error                    { return nil }
func (everybody) MayRecord(Verb, string, int64) error       { return nil }
func (everybody) Wrote(int, func(i int) Written)            {}
func (everybody) Can(Verb, string) error                    { return nil }
func (everybody) Sees(string) bool                          { return true }
func (everybody) Sign(value []byte, _ time.Duration) []byte { return value }
func (everybody) Open(sealed []byte) ([]byte, error)        { return sealed, nil }
func (everybody) Signs() bool                               { return false }
func (everybody) Table() int64                              { return 0 }

// CallOf returns the call in a context, or nil if the context has none. Without a call nothing is allowed, so the
// functions of this package that take a context return an error.
func CallOf(ctx context.Context) Call {
	call, _ := ctx.Value(callKey{}).(Call)
	return call
}

// Identified reports whether a context's caller was identified, and therefore needs permission for its operations. A
// context without a call counts as identified, so that its operations are refused.
func Identified(ctx context.Context) bool { return CallOf(ctx) != Everybody }

// errNoCall is the error for a context without a call. No client can cause it, because the server puts a call into each
// context.
var errNoCall = status.Error(codes.Internal, "who makes this call was not found out before it came here, so that "+
	"nothing is done for it: this is a defect of Sheaf, please report it")

// callOf returns the call of a context. It returns errNoCall if the context has none.
func callOf(ctx context.Context) (Call, error) {
	if call := CallOf(ctx); call != nil {
		return call, nil
	}
	return nil, errNoCall
}

// May calls the method May of the call in a context. It returns an error if the context has no call.
func May(ctx context.Context, verb Verb, group string) error {
	call, err := callOf(ctx)
	if err != nil {
		return err
	}
	return call.May(verb, group)
}

// MayRecord calls the method MayRecord of the call in a context. It returns an error if the context has no call.
func MayRecord(ctx context.Context, verb Verb, group string, id int64) error {
	call, err := callOf(ctx)
	if err != nil {
		return err
	}
	return call.MayRecord(verb, group, id)
}

// Written is a write and its outcome.
type Written struct {
	Verb  Verb // NoVerb if the audit log gets no line for this write
	Group string
	ID    int64
	Code  codes.Code
}
