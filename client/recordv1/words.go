// Package recordv1 is Sheaf's gRPC API, generated from the .proto files in this folder. It also has functions that
// describe states in words, that write and read messages about shards and groups as JSON, and that receive responses
// sent in several parts.
package recordv1

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Word returns the state in the spelling that the status and conditions of Kubernetes objects use, for example
// FileSystemMismatch for SHARD_STATE_FILE_SYSTEM_MISMATCH. It returns an empty string for an unspecified or unknown
// state.
func (x ShardState) Word() string { return word(x) }

// Word returns the state in one word, for example Serving for GROUP_STATE_SERVING. It returns an empty string for an
// unspecified or unknown state.
func (x GroupState) Word() string { return word(x) }

// Word returns the outcome in one word, for example Truncated for LOAD_OUTCOME_TRUNCATED. It returns an empty string
// for an unspecified or unknown outcome.
func (x LoadOutcome) Word() string { return word(x) }

// Word returns the phase in one word, for example Files for COPY_PHASE_FILES. It returns an empty string for an
// unspecified or unknown phase.
func (x CopyPhase) Word() string { return word(x) }

// Word returns the role in one word, for example Voter for MEMBER_ROLE_VOTER. It returns an empty string for an
// unspecified or unknown role.
func (x MemberRole) Word() string { return word(x) }

// Word returns the state in one word, for example Draining for PLACEMENT_STATE_DRAINING. It returns an empty string for
// an unspecified or unknown state.
func (x PlacementState) Word() string { return word(x) }

// word returns the name of an enum value in camel case, without the prefix shared by all values of the enum. It returns
// an empty string for 0 and for an unknown value.
func word(x protoreflect.Enum) string { return wordOf(x.Descriptor(), x.Number()) }

// wordOf is like word, but takes the enum and the number instead of the value.
func wordOf(enum protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	value := enum.Values().ByNumber(n)
	if n == 0 || value == nil {
		return ""
	}
	prefix := strings.TrimSuffix(string(enum.Values().ByNumber(0).Name()), "UNSPECIFIED")
	var out strings.Builder
	for part := range strings.SplitSeq(strings.TrimPrefix(string(value.Name()), prefix), "_") {
		out.WriteString(part[:1] + strings.ToLower(part[1:]))
	}
	return out.String()
}
