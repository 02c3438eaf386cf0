package reason

import (
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// Of returns the word for an error: the reason in its ErrorInfo or, if there is none, the name of its gRPC code.
func Of(err error) string {
	word, _ := wordOf(status.Convert(err))
	return word
}

func wordOf(st *status.Status) (word string, facts []string) {
	word = code.Code(st.Code()).String()
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() != Domain {
				continue
			}
			word = d.GetReason()
			for _, key := range []string{"address", "routing_epoch"} {
				if value := d.GetMetadata()[key]; value != "" && !strings.ContainsAny(value, " ()=") {
					facts = append(facts, key+"="+value)
				}
			}
		case *errdetails.RetryInfo:
			ms := max(d.GetRetryDelay().AsDuration().Milliseconds(), 1)
			facts = append(facts, "retry_after_ms="+strconv.FormatInt(ms, 10))
		}
	}
	return word, facts
}

// InText returns the same error with a text that begins with its word in brackets, and with those facts from its
// details that a program needs. Clients of Arrow Flight see the text alone. An error whose text begins so already is
// returned unchanged.
func InText(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	word, facts := wordOf(st)
	if strings.HasPrefix(st.Message(), "["+word+"]") {
		return err
	}
	full := st.Proto()
	text := "[" + word + "] "
	if len(facts) > 0 {
		text += "(" + strings.Join(facts, " ") + ") "
	}
	full.Message = text + full.GetMessage()
	return status.FromProto(full).Err()
}

// TextFor returns the error as the caller of a method has to see it: with InText, if the method is one of Arrow Flight.
func TextFor(method string, err error) error {
	if err != nil && strings.HasPrefix(method, FlightService) {
		return InText(err)
	}
	return err
}

// FlightService is the prefix of the full names of Arrow Flight's methods.
const FlightService = "/arrow.flight.protocol.FlightService/"

// Version returns the current version of the record from a VERSION_MISMATCH or RECORD_EXISTS, and "" for other errors.
func Version(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if d, ok := detail.(*errdetails.ErrorInfo); ok && d.GetDomain() == Domain {
			return d.GetMetadata()["version"]
		}
	}
	return ""
}
