package fleet

import (
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// ReasonLoading is the reason of condition Loaded while shards load. The message of the condition then shows the
// progress of loading.
const ReasonLoading = "Loading"

// UrgentOfShard returns the part of a shard's status whose changes have to be written immediately. That part includes
// how many groups the shard has, but not how many of them it has loaded or leads.
func UrgentOfShard(s v1alpha1.ShardStatus) v1alpha1.ShardStatus {
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

// UrgentOfPool returns the part of a pool's status whose changes have to be written immediately. For each shard in
// the status, this is the part that UrgentOfShard returns.
func UrgentOfPool(p v1alpha1.ShardPoolStatus) v1alpha1.ShardPoolStatus {
	out := *p.DeepCopy()
	out.Load, out.Records, out.StoredBytes = "", 0, 0
	if g := &out.Groups; g.Loading > 0 {
		g.Serving, g.Loading, g.Degraded = min(g.Serving, 1), 1, 0
	}
	for i := range out.Groups.NotWell {
		out.Groups.NotWell[i].Message = withoutNumbers(out.Groups.NotWell[i].Message)
	}
	for i := range out.ShardStatuses {
		out.ShardStatuses[i] = UrgentOfShard(out.ShardStatuses[i])
	}
	for i := range out.Conditions {
		out.Conditions[i].Message = urgentOfCondition(&out.Conditions[i])
	}
	return out
}

// urgentOfCondition returns the part of a condition's message whose changes have to be written immediately. It is
// empty while shards load, because the message then only shows the progress.
func urgentOfCondition(c *metav1.Condition) string {
	if c.Reason == ReasonLoading {
		return ""
	}
	return withoutNumbers(c.Message)
}

// numbers matches words that begin with a digit, such as 3, 2,000, 62% or 1.9GiB/s. It does not match a number within a
// name, such as ssd-3 or n1.
var numbers = regexp.MustCompile(`(^|[^\w.-])[0-9](?:[\w.%/]|,[0-9])*`)

// withoutNumbers replaces each number in a text by #. Texts that differ only in numbers mean the same.
func withoutNumbers(text string) string { return numbers.ReplaceAllString(text, "${1}#") }
