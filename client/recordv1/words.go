// Package recordv1 is the gRPC contract of Sheaf, generated from the .proto files of its folder, with a few words for
// people, and functions that receive answers that come in parts.
package recordv1

import "strings"

// Word is the state as status and conditions spell it: FileSystemMismatch for SHARD_STATE_FILE_SYSTEM_MISMATCH. Empty
// for a state that was not sent or that this program does not know.
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

// Word is the outcome in one word: Truncated for LOAD_OUTCOME_TRUNCATED. Empty as for a ShardState.
func (x LoadOutcome) Word() string {
	if x == LoadOutcome_LOAD_OUTCOME_UNSPECIFIED {
		return ""
	}
	return word(LoadOutcome_name[int32(x)], "LOAD_OUTCOME_")
}

// Word is the phase in one word: Files for COPY_PHASE_FILES. Empty as for a ShardState.
func (x CopyPhase) Word() string {
	if x == CopyPhase_COPY_PHASE_UNSPECIFIED {
		return ""
	}
	return word(CopyPhase_name[int32(x)], "COPY_PHASE_")
}

// Word is the role in one word: Voter for MEMBER_ROLE_VOTER. Empty as for a ShardState.
func (x MemberRole) Word() string {
	if x == MemberRole_MEMBER_ROLE_UNSPECIFIED {
		return ""
	}
	return word(MemberRole_name[int32(x)], "MEMBER_ROLE_")
}

// Word is the state in one word: Draining for PLACEMENT_STATE_DRAINING. Empty as for a ShardState.
func (x PlacementState) Word() string {
	if x == PlacementState_PLACEMENT_STATE_UNSPECIFIED {
		return ""
	}
	return word(PlacementState_name[int32(x)], "PLACEMENT_STATE_")
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
