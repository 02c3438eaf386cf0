package access

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Call is a gRPC call in progress. Its methods determine what the caller is allowed to do.
type Call interface {
	// Caller returns the identity of the caller.
	Caller() *Caller
	// May returns an error unless the caller may use the verb in the group. If group is empty, the caller must have the
	// right in all groups. Handlers call May before they look anything up. The errors are the same as those of
	// Compiled.Decide. May is safe for concurrent use.
	May(verb Verb, group string) error
	// MayRecord is like May, but for one record of the group. If writes are audited, an allowed put or delete is written
	// to the audit log, together with its outcome, when the call ends. In calls in which each message is decided
	// separately, the handler reports the writes with Wrote instead.
	MayRecord(verb Verb, group string, id int64) error
	// Wrote records the n writes of one message in the audit log, whether they have succeeded or failed. If writes are
	// audited, Wrote calls what(i) for each i below n to get the writes. It never calls what after it has returned.
	// The caller leaves out writes that were refused, because the refusals are already in the audit log.
	Wrote(n int, what func(i int) Written)
	// Viewed records in the audit log that a view was opened, renewed or closed, or that this has failed.
	Viewed(what Viewed)
	// Can is like May, but a refusal is not written to the audit log, and a permission does not count as a use of a
	// grant. The decision is not made again when the table changes during the call.
	Can(verb Verb, group string) error
	// Sees reports whether the caller has any right at all in the group.
	Sees(group string) bool
	// Sign signs a value that the caller will send back later, and Open then verifies it. The argument lasts is the time
	// for which the value is valid; 0 means forever. If the caller is one of the store's own processes, the value is not
	// signed. This also holds for a gateway that calls on behalf of somebody else, because the gateway itself signs and
	// verifies the values of its callers. Open returns ErrForged or ErrOutdated if the value is not valid.
	Sign(value []byte, lasts time.Duration) []byte
	Open(sealed []byte) ([]byte, error)
	// SignShared does the same as Sign, but the value may be sent back by any caller. What it names must be decided again
	// whenever it is used.
	SignShared(value []byte, lasts time.Duration) []byte
	// Signs reports whether Sign signs values and Open accepts only signed values. If it returns false, both methods
	// leave values unchanged.
	Signs() bool
	// Table returns the version of the grant table that was used for decisions, or 0 if there is no table.
	Table() int64
}

type callKey struct{}

// WithCall returns a context that carries a call. The call's handler can use it to check what the caller may do.
func WithCall(ctx context.Context, call Call) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}

// Everybody is the Call for callers that use plaintext and therefore cannot be identified. It allows everything and
// signs nothing. The server puts it into the context of every plaintext call. A context without any Call is a
// programming error.
var Everybody Call = everybody{}

// everybody implements Call for Everybody.
type everybody struct{}

func (everybody) Caller() *Caller                                 { return &Caller{} }
func (everybody) May(Verb, string) error                          { return nil }
func (everybody) MayRecord(Verb, string, int64) error             { return nil }
func (everybody) Wrote(int, func(i int) Written)                  {}
func (everybody) Viewed(Viewed)                                   {}
func (everybody) Can(Verb, string) error                          { return nil }
func (everybody) Sees(string) bool                                { return true }
func (everybody) Sign(value []byte, _ time.Duration) []byte       { return value }
func (everybody) Open(sealed []byte) ([]byte, error)              { return sealed, nil }
func (everybody) SignShared(value []byte, _ time.Duration) []byte { return value }
func (everybody) Signs() bool                                     { return false }
func (everybody) Table() int64                                    { return 0 }

// CallOf returns the call in a context, or nil if there is none. Without a call nothing is allowed, so all functions
// of this package that take a context then return an error.
func CallOf(ctx context.Context) Call {
	call, _ := ctx.Value(callKey{}).(Call)
	return call
}

// Identified reports whether the caller in a context was identified. Such a caller needs permission for what it does.
// If there is no call in the context, Identified returns true, so that everything is refused.
func Identified(ctx context.Context) bool { return CallOf(ctx) != Everybody }

// errNoCall is the error for a context that has no call. Clients cannot cause it, because the server puts a call into
// every context.
var errNoCall = status.Error(codes.Internal, "who makes this call was not found out before it came here, so that "+
	"nothing is done for it: this is a defect of Sheaf, please report it")

// callOf returns the call in a context, or errNoCall if there is none.
func callOf(ctx context.Context) (Call, error) {
	if call := CallOf(ctx); call != nil {
		return call, nil
	}
	return nil, errNoCall
}

// May calls the method May of the call in the context. If there is no call, it returns an error.
func May(ctx context.Context, verb Verb, group string) error {
	call, err := callOf(ctx)
	if err != nil {
		return err
	}
	return call.May(verb, group)
}

// MayRecord calls the method MayRecord of the call in the context. If there is no call, it returns an error.
func MayRecord(ctx context.Context, verb Verb, group string, id int64) error {
	call, err := callOf(ctx)
	if err != nil {
		return err
	}
	return call.MayRecord(verb, group, id)
}

// Viewed is what a caller has done with a view of records, and the outcome.
type Viewed struct {
	Action string   // "open", "renew" or "close"
	View   string   // id of the view
	Groups []string // names of its groups
	Code   codes.Code
}

// Written is a write and its outcome.
type Written struct {
	Verb  Verb // NoVerb if the audit log gets no line for this write
	Group string
	ID    int64
	Code  codes.Code
}
