package web

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
)

// Problem is an error as HTTP shows it.
type Problem struct {
	Status     int           `json:"-"`
	Code       string        `json:"code"`
	Reason     string        `json:"reason"`
	Message    string        `json:"message"`
	RetryAfter time.Duration `json:"-"`
	Seconds    float64       `json:"retryAfterSeconds,omitempty"`
}

// ProblemOf describes an error.
func ProblemOf(err error) Problem {
	if wrong, ok := errors.AsType[*BadRequestError](err); ok {
		err = status.Error(codes.InvalidArgument, wrong.Error())
	}
	if large, ok := errors.AsType[*TooLargeError](err); ok {
		p := ProblemOf(status.Error(codes.InvalidArgument, large.Error()))
		p.Status = http.StatusRequestEntityTooLarge
		return p
	}
	st := status.Convert(err)
	p := Problem{Code: code.Code(st.Code()).String(), Reason: reason.Of(err), Message: st.Message()}
	for _, detail := range st.Details() {
		if d, ok := detail.(*errdetails.RetryInfo); ok {
			p.RetryAfter = d.GetRetryDelay().AsDuration()
			p.Seconds = p.RetryAfter.Seconds()
		}
	}
	p.Status = statusOf(st.Code(), p.Reason)
	return p
}

func statusOf(c codes.Code, why string) int {
	switch why {
	case reason.Overloaded:
		return http.StatusServiceUnavailable
	case reason.BadRange:
		return http.StatusRequestedRangeNotSatisfiable
	case reason.GroupFailed:
		return http.StatusInternalServerError
	}
	switch c {
	case codes.OK:
		return http.StatusOK
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.Aborted, codes.AlreadyExists:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable, codes.Canceled:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// JSON returns the body of the answer.
func (p *Problem) JSON() []byte {
	return append(appendValue(nil, map[string]*Problem{"error": p}), '\n')
}

// Write answers a request with the problem.
func (p *Problem) Write(w http.ResponseWriter) {
	body, h := p.JSON(), w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(p.Seconds)), 10))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
		h.Set("Connection", "close") // otherwise callers whom nobody knows could keep connections open
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a caller who has gone needs no answer
}

// Failure is a line of the member FAILURES.
type Failure struct {
	Position   int     `json:"position"`
	ID         string  `json:"id"`
	Group      string  `json:"group"`
	Code       string  `json:"code"`
	Reason     string  `json:"reason"`
	Message    string  `json:"message"`
	RetryAfter float64 `json:"retryAfterSeconds"`
}

// AppendFailure appends the line of a record that could not be read.
func AppendFailure(dst []byte, position int, id int64, group string, err error) []byte {
	p := ProblemOf(err)
	line, err := json.Marshal(Failure{Position: position, ID: strconv.FormatInt(id, 10), Group: group, Code: p.Code,
		Reason: p.Reason, Message: p.Message, RetryAfter: p.Seconds})
	if err != nil { // strings and numbers can always be encoded
		return dst
	}
	return append(append(dst, line...), '\n')
}
