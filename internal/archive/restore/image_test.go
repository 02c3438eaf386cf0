package restore

import (
	"bytes"
	"io"
	"testing"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// atMost is a reader whose caller wants at most so many bytes at a time.
type atMost struct {
	io.Reader
	bytes int
}

func (r atMost) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(len(b), r.bytes)]) }

// A file has the same bytes however many of them a caller of Read wants at a time: frames that fit are created in the
// caller's memory, and others are not.
func TestAFileDoesNotDependOnTheCallersMemory(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	a := open(t, b, w)
	for _, kept := range []int64{0, 1 << 20} {
		l := defaultLimits
		l.keptBytes = kept
		i, err := imageOf(t.Context(), a, w.Groups[0].UUID, w.Groups[0].Through(), l)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range i.Files() {
			var want []byte
			for _, n := range []int{1 << 20, 1, 100, 333} {
				r, err := i.Open(t.Context(), file.Name, 0)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(atMost{r, n})
				if err != nil || int64(len(got)) != file.Bytes || want != nil && !bytes.Equal(got, want) {
					t.Errorf("%s, kept %d, %d bytes at a time: other bytes, %d of %d, %v", file.Name, kept, n, len(got), file.Bytes,
						err)
				}
				want = got
			}
		}
	}
}
