package bucket_test

import (
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/test/buckettest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// Objects outside the folder must be neither listed nor reachable.
func TestFolderInBucketIsIsolated(t *testing.T) {
	buckettest.Run(t, func(t *testing.T) bucket.Bucket {
		whole := open(t, vfstest.NewMem(), "/archive")
		for _, name := range []string{"m/a", "n-/a", "n.a", "n0/a", "na", "o/a"} {
			if err := whole.Create(t.Context(), name, 0, strings.NewReader("")); err != nil {
				t.Fatal(err)
			}
		}
		return bucket.Under(whole, "n")
	})
}
