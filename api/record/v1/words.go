package recordv1

import "strings"

// Word is the state as status and conditions spell it: FileSystemMismatch for SHARD_STATE_FILE_SYSTEM_MISMATCH. Empty for
// a state that was not sent or that this program does not know.
func (x ShardState) Word() string {
	name, ok := ShardState_name[int32(x)]
	if !ok || x == ShardState_SHARD_STATE_UNSPECIFIED {
		return ""
	}
	var word strings.Builder
	for part := range strings.SplitSeq(strings.TrimPrefix(name, "SHARD_STATE_"), "_") {
		word.WriteString(part[:1] + strings.ToLower(part[1:]))
	}
	return word.String()
}
