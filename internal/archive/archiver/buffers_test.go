package archiver

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// built returns a builder with one entry of the given size. The builder may use memory of b.
func built(t *testing.T, b *buffers, bytes int) *pieces.Builder {
	t.Helper()
	news := pieces.NewBuilder(uuid.New(), uuid.New(), time.Unix(1, 0))
	b.take(news)
	if err := news.Append(&format.Entry{Kind: format.KindPut, Index: 1, Term: 1, CommitTime: 1, Timestamp: 1,
		Data: make([]byte, bytes)}); err != nil {
		t.Fatal(err)
	}
	return news
}

// The memory of entries that were archived is used for those that follow, and only so much is kept.
func TestMemoryOfNewEntriesIsUsedAgain(t *testing.T) {
	b := &buffers{bytesMax: 1 << 20}
	first := built(t, b, 100<<10)
	b.give(nil)
	b.give(first)
	if again := built(t, b, 100<<10); &again.Buffer()[0] != &first.Buffer()[0] || b.bytes != 0 || len(b.free) != 0 {
		t.Errorf("the memory is not used again: %d bytes in %d buffers are kept", b.bytes, len(b.free))
	}
	var many []*pieces.Builder
	for range 20 {
		many = append(many, built(t, b, 100<<10))
	}
	for _, news := range many {
		b.give(news)
	}
	if kept := int64(len(b.free)) * int64(cap(b.free[0])); b.bytes > b.bytesMax || kept > b.bytesMax || len(b.free) < 5 {
		t.Errorf("%d bytes in %d buffers are kept, of at most %d", b.bytes, len(b.free), b.bytesMax)
	}
}
