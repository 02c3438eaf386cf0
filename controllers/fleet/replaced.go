package fleet

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// AnnotationReplaced on a ShardPool lists the claims that were given up for spec.replace, as NUMBER=UID separated by
// commas. It distinguishes a shard that was replaced from one that is yet to be replaced, and remains as long as
// spec.replace lists the shard.
const AnnotationReplaced = "sheaf.dev/replaced-claims"

// ReplacedClaims returns the claims that a pool's annotation lists, by shard number.
func ReplacedClaims(pool *v1alpha1.ShardPool) map[int32]types.UID {
	marks := map[int32]types.UID{}
	for item := range strings.SplitSeq(pool.Annotations[AnnotationReplaced], ",") {
		digits, uid, ok := strings.Cut(strings.TrimSpace(item), "=")
		n, err := strconv.ParseInt(digits, 10, 32)
		if ok && err == nil && n >= 0 && uid != "" {
			marks[int32(n)] = types.UID(uid)
		}
	}
	return marks
}
