// Package recordv1 is the gRPC contract of Sheaf, generated from the .proto files of this folder. It also has functions
// that name states in words for people, and functions that receive answers that are sent in parts.
package recordv1

import "strings"

// Word returns the state as the status and the conditions of Kubernetes objects spell it, for example
// FileSystemMismatch for SHARD_STATE_FILE_SYSTEM_MISMATCH. The word is empty for a state that was not sent or that this
// program does not know.
func (x ShardState) Word() string {
	if x == ShardState_SHARD_STATE_UNSPECIFIED {
		return ""
	}
	return word(ShardState_name[int32(x)], "SHARD_STATE_")
}

// Word returns the state in one word, for example Serving for GROUP_STATE_SERVING. It is empty in the same cases as for
// a ShardState.
func (x GroupState) Word() string {
	if x == GroupState_GROUP_STATE_UNSPECIFIED {
		return ""
	}
	return word(GroupState_name[int32(x)], "GROUP_STATE_")
}

// Word returns the outcome in one word, for example Truncated for LOAD_OUTCOME_TRUNCATED. It is empty in the same cases
// as for a ShardState.
func (x LoadOutcome) Word() string {
	if x == LoadOutcome_LOAD_OUTCOME_UNSPECIFIED {
		return ""
	}
	return word(LoadOutcome_name[int32(x)], "LOAD_OUTCOME_")
}

// Word returns the phase in one word, for example Files for COPY_PHASE_FILES. It is empty in the same cases as for a
// ShardState.
func (x CopyPhase) Word() string {
	if x == CopyPhase_COPY_PHASE_UNSPECIFIED {
		return ""
	}
	return word(CopyPhase_name[int32(x)], "COPY_PHASE_")
}

// Word returns the role in one word, for example Voter for MEMBER_ROLE_VOTER. It is empty in the same cases as for a
// ShardState.
func (x MemberRole) Word() string {
	if x == MemberRole_MEMBER_ROLE_UNSPECIFIED {
		return ""
	}
	return word(MemberRole_name[int32(x)], "MEMBER_ROLE_")
}

// Word returns the state in one word, for example Draining for PLACEMENT_STATE_DRAINING. It is empty in the same cases
// as for a ShardState.
func (x PlacementState) Word() string {
	if x == PlacementState_PLACEMENT_STATE_UNSPECIFIED {
		return ""
	}
	return word(PlacementState_name[int32(x)], "PLACEMENT_STATE_")
}

// word returns the name of an enum's value in camel case; empty for an unknown value.
func word(name, prefix string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(strings.TrimPrefix(name, prefix), "_") {
		if part != "" {
			out.WriteString(part[:1] + strings.ToLower(part[1:]))
		}
	}
	return out.String()
}
