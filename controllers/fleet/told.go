package fleet

import (
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// ReasonLoading is of condition Loaded while shards load: its message is their progress.
const ReasonLoading = "Loading"

// ToldOfShard is what a shard's status tells. How many groups it has is told; how many of them it has loaded yet, or
// leads, is not.
func ToldOfShard(s v1alpha1.ShardStatus) v1alpha1.ShardStatus {
	s.Message = withoutNumbers(s.Message)
	s.Records, s.StoredBytes, s.LeadingGroups, s.MemoryNeedBytes = 0, 0, 0, 0
	s.Load, s.LoadPercent, s.LoadBytesPerSecond, s.LoadDevicePercent = "", 0, 0, 0
	if s.State == v1alpha1.ShardLoading {
		s.ServingGroups = min(s.ServingGroups, 1)
	}
	if s.Volume != nil {
		volume := *s.Volume
		volume.FreeBytes = 0
		s.Volume = &volume
	}
	return s
}

// ToldOfPool is what a pool's status tells. What its shards tell is in it as far as it lists them.
func ToldOfPool(p v1alpha1.ShardPoolStatus) v1alpha1.ShardPoolStatus {
	out := *p.DeepCopy()
	out.Load, out.Records, out.StoredBytes = "", 0, 0
	if g := &out.Groups; g.Loading > 0 {
		g.Serving, g.Loading, g.Degraded = min(g.Serving, 1), 1, 0
	}
	for i := range out.Groups.NotWell {
		out.Groups.NotWell[i].Message = withoutNumbers(out.Groups.NotWell[i].Message)
	}
	for i := range out.ShardStatuses {
		out.ShardStatuses[i] = ToldOfShard(out.ShardStatuses[i])
	}
	for i := range out.Conditions {
		out.Conditions[i].Message = toldOfCondition(&out.Conditions[i])
	}
	return out
}

// toldOfCondition is what a condition's message tells; of shards that load it is nothing but progress.
func toldOfCondition(c *metav1.Condition) string {
	if c.Reason == ReasonLoading {
		return ""
	}
	return withoutNumbers(c.Message)
}

// numbers are words that begin with a digit, such as 3, 62% or 1.9GiB/s. The number in a name, such as in ssd-3 or n1,
// is none.
var numbers = regexp.MustCompile(`(^|[^\w.-])[0-9][\w.%/]*`)

// withoutNumbers has a # in place of each number of a text. Texts that differ in numbers alone mean the same.
func withoutNumbers(text string) string { return numbers.ReplaceAllString(text, "${1}#") }
