// Package recordv1 is the gRPC contract of Sheaf, generated from the .proto files of its folder, and a few words for people.
package recordv1

import "strings"

// VolumeSilent begins the problem (Shard.problems) of a shard whose disk lets it wait without an error. It says that it
// serves all the same.
const VolumeSilent = "the volume does not answer"

// Word is the state as status and conditions spell it: FileSystemMismatch for SHARD_STATE_FILE_SYSTEM_MISMATCH. Empty for
// a state that was not sent or that this program does not know.
func (x ShardState) Word() string {
	if x == ShardState_SHARD_STATE_UNSPECIFIED {
		return ""
	}
	return word(ShardState_name[int32(x)], "SHARD_STATE_")
}

// Word is the state in one word: Serving for GROUP_STATE_SERVING. Empty as for a ShardState.
func (x GroupState) Word() string {
	if x == GroupState_GROUP_STATE_UNSPECIFIED {
		return ""
	}
	return word(GroupState_name[int32(x)], "GROUP_STATE_")
}

// word is the name of an enum's value in camel case; an unknown value has no name.
func word(name, prefix string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(strings.TrimPrefix(name, prefix), "_") {
		if part != "" {
			out.WriteString(part[:1] + strings.ToLower(part[1:]))
		}
	}
	return out.String()
}
