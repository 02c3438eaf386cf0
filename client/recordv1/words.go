// Package recordv1 is the gRPC contract of Sheaf, generated from the .proto files of this folder. It also has functions
// that name states in words for people, that write and read messages about shards and groups as JSON, and that receive
// answers that are sent in parts.
package recordv1

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Word returns the state as the status and the conditions of Kubernetes objects spell it, for example
// FileSystemMismatch for SHARD_STATE_FILE_SYSTEM_MISMATCH. The word is empty for a state that was not sent or that this
// program does not know.
func (x ShardState) Word() string { return word(x) }

// Word returns the state in one word, for example Serving for GROUP_STATE_SERVING. It is empty in the same cases as for
// a ShardState.
func (x GroupState) Word() string { return word(x) }

// Word returns the outcome in one word, for example Truncated for LOAD_OUTCOME_TRUNCATED. It is empty in the same cases
// as for a ShardState.
func (x LoadOutcome) Word() string { return word(x) }

// Word returns the phase in one word, for example Files for COPY_PHASE_FILES. It is empty in the same cases as for a
// ShardState.
func (x CopyPhase) Word() string { return word(x) }

// Word returns the role in one word, for example Voter for MEMBER_ROLE_VOTER. It is empty in the same cases as for a
// ShardState.
func (x MemberRole) Word() string { return word(x) }

// Word returns the state in one word, for example Draining for PLACEMENT_STATE_DRAINING. It is empty in the same cases
// as for a ShardState.
func (x PlacementState) Word() string { return word(x) }

// word returns the name of an enum's value in camel case, without the prefix that all values of the enum share. It is
// empty for the value 0 and for an unknown one.
func word(x protoreflect.Enum) string { return wordOf(x.Descriptor(), x.Number()) }

// wordOf is like word, for a value that is given by its enum and its number.
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
