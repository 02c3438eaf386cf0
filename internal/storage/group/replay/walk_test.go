package replay

import (
	"math"
	"slices"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/test/must"
)

// written returns a segment whose first index is 1. The segment has one put for each pair of index and term, and the
// number of the put is its record id. The puts whose numbers are in hit are damaged.
func written(t *testing.T, puts [][2]uint64, hit ...int) (image []byte, m format.ManifestSegment, whole *Walk) {
	m = format.ManifestSegment{Number: 1, ID: format.SegmentID{1}, FirstIndex: 1}
	image = format.SegmentHeader{ID: m.ID, FirstIndex: 1}.Encode()
	var begin []int
	for i, p := range puts {
		begin = append(begin, len(image))
		e := format.Entry{Kind: format.KindPut, ID: int64(i), Index: p[0], Term: p[1], Used: true}
		image = format.AppendFrame(image, m.ID, int64(len(image)), &e)
		m.LastIndex = p[0]
	}
	m.Bytes = int64(len(image))
	whole = walked(t, image, m)
	for _, i := range hit {
		clear(image[begin[i] : begin[i]+format.FrameHeaderBytes])
	}
	return image, m, whole
}

func walked(t *testing.T, image []byte, m format.ManifestSegment) *Walk {
	t.Helper()
	w, err := Segment(segio.NewFrameReaderBytes(image, m.ID, format.SegmentHeaderBytes), m.FirstIndex, m.Bytes, true)
	must.OK(t, err)
	return w
}

// TestBadBytesBetweenNeighboursShowWhatTheyHide checks bad bytes that may hide an entry which made an earlier, whole
// entry void. This is possible even if the whole entries before and after the bad bytes have consecutive indexes.
func TestBadBytesBetweenNeighboursShowWhatTheyHide(t *testing.T) {
	for what, puts := range map[string][][2]uint64{
		"the term rises behind them": {{1, 1}, {2, 2}, {2, 3}, {3, 3}},
		"the term falls behind them": {{1, 1}, {2, 4}, {2, 3}, {3, 3}},
	} {
		image, m, whole := written(t, puts, 2)
		w := walked(t, image, m)
		damages, ids := w.Explain("g", m, m.LastIndex, whole.Rows.Hint(m, whole.Terms), true)
		if len(damages) != 1 || damages[0].IDsUnknown || !slices.Equal(damages[0].IDs, []int64{2}) ||
			damages[0].IndexFirst != 2 || damages[0].IndexLast != 2 ||
			len(ids) != 1 || ids[0].ID != 2 || ids[0].Index != 2 {
			t.Errorf("%s, with a hint: %v, %v", what, damages, ids)
		}
		damages, _ = w.Explain("g", m, m.LastIndex, nil, true)
		if len(damages) != 1 || !damages[0].IDsUnknown || damages[0].IndexFirst > 2 || damages[0].IndexLast != 2 {
			t.Errorf("%s, without a hint: %v", what, damages)
		}
	}
}

// TestBadBytesThatHideATruncationForSureLoseWhatTookItsPlace checks bad bytes after which the term decreases. They
// certainly hide a truncation, even in a group whose manifest has never had several voters.
func TestBadBytesThatHideATruncationForSureLoseWhatTookItsPlace(t *testing.T) {
	image, m, _ := written(t, [][2]uint64{{1, 1}, {2, 4}, {3, 4}, {2, 3}, {3, 3}, {4, 3}}, 3, 4)
	w := walked(t, image, m)
	damages, _ := w.Explain("g", m, m.LastIndex, nil, false)
	if len(damages) != 1 || damages[0].IndexFirst != 2 || damages[0].IndexLast != 3 {
		t.Errorf("%v", damages)
	}
	if !slices.Equal(w.Rows.IDs, []int64{0, 5}) || w.Last != 4 || format.TermAt(w.Terms, math.MaxUint64) != 3 {
		t.Errorf("ids %v, last %d, terms %v", w.Rows.IDs, w.Last, w.Terms)
	}
}
