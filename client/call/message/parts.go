package message

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// partsMax limits the number of parts in one request. The parts are the request's fields and those of its nested
	// messages. Even the largest requests of well-behaved clients, which are full batches with attributes, have only a
	// fraction of this number.
	partsMax = 1 << 18
	// countedBytesMin is the smallest request, in bytes, whose parts are counted. A part has at least two bytes, so
	// smaller requests have too few parts to matter.
	countedBytesMin = 128 << 10
	// The names of all request messages from callers and archivers begin with one of the first two strings and end
	// with the third.
	requestsOf, requestsOfArchivers, requestName = "sheaf.record.v1.", "sheaf.archive.v1.", "Request"
)

// CheckParts returns an error if a request has so many parts that decoding it would take far more memory than its
// bytes. For example, an empty put has 2 encoded bytes, and takes more than 100 bytes of memory.
func CheckParts(encoded []byte, m proto.Message) error {
	if len(encoded) < countedBytesMin {
		return nil
	}
	d := m.ProtoReflect().Descriptor()
	name := string(d.FullName())
	if of := strings.HasPrefix(name, requestsOf) || strings.HasPrefix(name, requestsOfArchivers); !of ||
		!strings.HasSuffix(name, requestName) {
		return nil
	}
	if left := countParts(encoded, d, partsMax); left < 0 {
		return fmt.Errorf("decoding a message: it has more than %d fields: send fewer in one message", partsMax)
	}
	return nil
}

// countParts subtracts the number of a message's parts from the argument left, and returns the difference. It returns
// early if the difference becomes negative. It also returns early at bytes that cannot be parsed, because the decoder
// reports them.
func countParts(b []byte, d protoreflect.MessageDescriptor, left int) int {
	for len(b) > 0 && left >= 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return left
		}
		left--
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return left
		}
		if kind == protowire.BytesType {
			if field := d.Fields().ByNumber(number); field != nil && field.Message() != nil {
				inner, _ := protowire.ConsumeBytes(b)
				left = countParts(inner, field.Message(), left)
			}
		}
		b = b[n:]
	}
	return left
}
