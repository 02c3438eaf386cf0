package segio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/grouptest"
)

var testSegment = format.SegmentID{1, 2, 3, 4, 5, 6, 7, 8}

func sampleHeader() format.SegmentHeader {
	return format.SegmentHeader{Store: uuid.UUID{1}, Group: uuid.UUID{2}, ID: testSegment, FirstIndex: 77,
		Created: 1700000000000000000}
}

// buildImage returns the image of a segment with n entries of random sizes, and the offset of each frame.
func buildImage(rnd *rand.Rand, n, dataBytesMax int) (image []byte, frames []int64) {
	image = sampleHeader().Encode()
	for i := range n {
		data := make([]byte, rnd.IntN(dataBytesMax+1))
		for k := range data {
			data[k] = byte(rnd.Uint32())
		}
		if len(data) > 200 { // puts markers into the data, which look like the beginning of a frame
			for k := 0; k+8 < len(data); k += 64 {
				binary.LittleEndian.PutUint32(data[k:], format.FrameMarker)
			}
		}
		e := format.Entry{Kind: format.KindPut, Used: true, ID: int64(i), Index: uint64(i + 1), Term: 1, CommitTime: int64(i),
			Data: data}
		frames = append(frames, int64(len(image)))
		image = format.AppendFrame(image, testSegment, int64(len(image)), &e)
	}
	return image, frames
}

// walk returns the steps of a walk, and fails the test if there are gaps between them.
func walk(t *testing.T, r *FrameReader, from, to int64) []FrameStep {
	t.Helper()
	var steps []FrameStep
	at := from
	for r.Next() {
		s := *r.Step()
		if s.Offset != at || s.Bytes <= 0 {
			t.Fatalf("a gap: step at %d of %d bytes, expected at %d", s.Offset, s.Bytes, at)
		}
		at += s.Bytes
		s.Entry.Data, s.Entry.Attributes, s.Raw = bytes.Clone(s.Entry.Data), bytes.Clone(s.Entry.Attributes), nil
		steps = append(steps, s)
	}
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	if at != to {
		t.Fatalf("walk ended at %d of %d", at, to)
	}
	return steps
}

// walkBoth walks the image in memory and in a file, and fails the test if the steps differ.
func walkBoth(t *testing.T, image []byte) []FrameStep {
	t.Helper()
	end := int64(len(image))
	a := walk(t, NewFrameReaderBytes(image, testSegment, format.SegmentHeaderBytes), format.SegmentHeaderBytes, end)
	b := walk(t, NewFrameReader(grouptest.AlignedReader{Image: image}, testSegment, format.SegmentHeaderBytes, end),
		format.SegmentHeaderBytes, end)
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("memory and file differ: %d and %d steps", len(a), len(b))
	}
	if c := walkAhead(t, grouptest.AlignedReader{Image: image}, nil); !reflect.DeepEqual(a, c) {
		t.Fatalf("memory and what is read ahead differ: %d and %d steps", len(a), len(c))
	}
	return a
}

// walkAhead returns the steps of a walk with read-ahead.
func walkAhead(t *testing.T, src grouptest.AlignedReader, pass func(*FrameStep) bool) []FrameStep {
	t.Helper()
	end := int64(len(src.Image))
	ahead := NewReadAhead(src, end)
	defer ahead.Close()
	r := NewFrameReader(ahead, testSegment, format.SegmentHeaderBytes, end)
	r.Pass = pass
	return walk(t, r, format.SegmentHeaderBytes, end)
}

// TestFrameReaderReadsAheadOfAFrameOverThreeReads checks a frame that spans three reads, the last of which fails. The
// frame must then be read again without read-ahead, from the block in which it begins.
func TestFrameReaderReadsAheadOfAFrameOverThreeReads(t *testing.T) {
	image := sampleHeader().Encode()
	const begin = aheadBytes - 40
	add := func(id int64, bytes int) {
		image = format.AppendFrame(image, testSegment, int64(len(image)),
			&format.Entry{Kind: format.KindPut, ID: id, Index: uint64(id), Term: 1,
				Data: grouptest.RandomBytes(uint64(id), bytes)})
	}
	add(1, begin-format.SegmentHeaderBytes-format.FrameHeaderBytes)
	add(2, format.DataBytesMax)
	add(3, 100_000)
	steps := walkAhead(t, grouptest.AlignedReader{Image: image,
		Bad: map[int64]bool{2 * aheadBytes / format.BlockBytes: true}}, nil)
	if len(steps) != 3 || steps[0].Status != FrameWhole || steps[1].Status != FrameContent || !steps[1].Unreadable ||
		steps[1].Offset != begin ||
		steps[2].Status != FrameBad || !steps[2].Unreadable {
		t.Errorf("steps %+v", steps)
	}
}

// TestFrameReaderReadsAhead checks that a walk with read-ahead takes the same steps as a walk without it. The file has
// frames that span several reads, unreadable blocks, and unwanted frames.
func TestFrameReaderReadsAhead(t *testing.T) {
	rnd, rounds := rand.New(rand.NewPCG(5, 6)), 40
	if testing.Short() {
		rounds = 6
	}
	for round := range rounds {
		image, _ := buildImage(rnd, 12, []int{format.DataBytesMax, 3 * format.DataBytesMax / 4}[round%2])
		src := grouptest.AlignedReader{Image: image, Bad: map[int64]bool{}}
		for range round % 4 {
			src.Bad[rnd.Int64N(int64(len(image))/format.BlockBytes)] = true
		}
		delete(src.Bad, 0)
		var pass func(*FrameStep) bool
		if round%3 == 0 {
			pass = func(s *FrameStep) bool { return s.Entry.ID%4 != 0 }
		}
		r := NewFrameReader(src, testSegment, format.SegmentHeaderBytes, int64(len(image)))
		r.Pass = pass
		want := walk(t, r, format.SegmentHeaderBytes, int64(len(image)))
		if got := walkAhead(t, src, pass); !reflect.DeepEqual(got, want) {
			t.Fatalf("round %d: %d and %d steps", round, len(got), len(want))
		}
	}
}

func TestFrameReaderWalksWholeSegments(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{0, 50, 5000, format.DataBytesMax} {
		image, frames := buildImage(rnd, 20, size)
		steps := walkBoth(t, image)
		if len(steps) != len(frames) {
			t.Fatalf("%d steps for %d frames", len(steps), len(frames))
		}
		for i, s := range steps {
			if s.Status != FrameWhole || s.Entry.ID != int64(i) || s.Offset != frames[i] {
				t.Fatalf("step %d: %+v", i, s)
			}
		}
	}
}

func TestFrameReaderGoesOnBehindBadBytes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for round := range 300 {
		image, frames := buildImage(rnd, 30, []int{40, 600, 9000}[round%3])
		frames = append(frames, int64(len(image)))
		// Each round of this loop overwrites one range, and counts the damaged frames.
		begin := format.SegmentHeaderBytes + rnd.IntN(len(image)-format.SegmentHeaderBytes)
		end := min(len(image), begin+1+rnd.IntN(3000))
		for k := begin; k < end; k++ {
			if round%2 == 0 {
				image[k] = 0
			} else {
				image[k] ^= byte(1 + rnd.IntN(255))
			}
		}
		whole := map[int64]bool{}
		for _, s := range walkBoth(t, image) {
			if s.Status == FrameWhole {
				whole[s.Entry.ID] = true
			}
			if s.Status == FrameContent && s.Offset != frames[s.Entry.ID] {
				t.Fatalf("content of id %d at %d, written at %d", s.Entry.ID, s.Offset, frames[s.Entry.ID])
			}
		}
		for i := range 30 {
			hit := frames[i] < int64(end) && int64(begin) < frames[i+1]
			if round%2 == 0 {
				if !hit && !whole[int64(i)] {
					t.Fatalf("round %d: frame %d was not hit and is lost", round, i)
				}
			} else if hit == whole[int64(i)] {
				t.Fatalf("round %d: frame %d hit %v, whole %v", round, i, hit, whole[int64(i)])
			}
		}
	}
}

func TestFrameReaderDistinguishesZerosFromBadBytes(t *testing.T) {
	image, _ := buildImage(rand.New(rand.NewPCG(5, 6)), 3, 100)
	n := int64(len(image))
	for _, room := range []int{1, 7, 79, 80, 81, 4096, 5 << 20} {
		steps := walkBoth(t, append(bytes.Clone(image), make([]byte, room)...))
		if last := steps[len(steps)-1]; len(steps) != 4 || last.Status != FrameZeros || last.Offset != n ||
			last.Bytes != int64(room) {
			t.Errorf("room of %d: %d steps, last %+v", room, len(steps), last)
		}
		dirty := append(bytes.Clone(image), make([]byte, room)...)
		dirty[len(dirty)-1] = 1
		steps = walkBoth(t, dirty)
		if last := steps[len(steps)-1]; last.Status != FrameBad || last.Offset != n || last.Bytes != int64(room) {
			t.Errorf("dirty room of %d: %+v", room, last)
		}
		dirty = append(dirty, make([]byte, 200)...)
		steps = walkBoth(t, dirty)
		last, before := steps[len(steps)-1], steps[len(steps)-2]
		if last.Status != FrameZeros || before.Status != FrameBad || before.Bytes != int64(room+7)&^7 || len(steps) != 5 {
			t.Errorf("room of %d, dirty at %d: %+v, %+v", room+200, room, before, last)
		}
	}
}

func TestFrameReaderNamesASegmentCutShort(t *testing.T) {
	image, frames := buildImage(rand.New(rand.NewPCG(7, 8)), 3, 300)
	for n := int(frames[2]) + 1; n < len(image); n++ {
		steps := walkBoth(t, image[:n])
		last := steps[2] // the zeros at the end of the damaged header may be a separate step
		want := FrameBad
		if n >= int(frames[2])+format.FrameHeaderBytes {
			want = FrameContent
		}
		if len(steps) > 4 || last.Status != want || last.Offset != frames[2] {
			t.Fatalf("%d bytes: %+v", n, last)
		}
	}
}

func TestFrameReaderLooksAtNothingBehindItsEnd(t *testing.T) {
	image, frames := buildImage(rand.New(rand.NewPCG(7, 9)), 6, 300)
	// After the damaged frame, the reader searches for the next frame. The search must end even at the end of the image.
	image[frames[3]]++
	buffer := FrameBuffer()
	for to := frames[2]; to < int64(len(image)); to++ {
		want := walk(t, NewFrameReaderBytes(image[:to], testSegment, format.SegmentHeaderBytes), format.SegmentHeaderBytes,
			to)
		r := NewFrameReader(grouptest.AlignedReader{Image: image}, testSegment, format.SegmentHeaderBytes, to)
		r.UseBuffer(buffer)
		got := walk(t, r, format.SegmentHeaderBytes, to)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("to %d: %d steps, want %d", to, len(got), len(want))
		}
	}
}

func TestFrameReaderPassesOverUnreadableSectors(t *testing.T) {
	image, frames := buildImage(rand.New(rand.NewPCG(9, 10)), 1500, 9000)
	frames = append(frames, int64(len(image)))
	bad := map[int64]bool{3: true, 700: true, 701: true, int64(len(image) / format.BlockBytes): true}
	r := NewFrameReader(grouptest.AlignedReader{Image: image, Bad: bad}, testSegment, format.SegmentHeaderBytes,
		int64(len(image)))
	whole := map[int64]bool{}
	for _, s := range walk(t, r, format.SegmentHeaderBytes, int64(len(image))) {
		if s.Status == FrameWhole {
			whole[s.Entry.ID] = true
		} else if !s.Unreadable {
			t.Errorf("not named unreadable: %+v", s)
		}
	}
	for i := range 1500 {
		hit := false
		for b := frames[i] / format.BlockBytes; b <= (frames[i+1]-1)/format.BlockBytes; b++ {
			hit = hit || bad[b]
		}
		if hit == whole[int64(i)] {
			t.Errorf("frame %d: hit %v, whole %v", i, hit, whole[int64(i)])
		}
	}
}

func TestFrameReaderAnswersTheErrorOfAFileItCannotReadAtAll(t *testing.T) {
	bad := map[int64]bool{}
	for i := range int64(600) {
		bad[i] = true
	}
	image, _ := buildImage(rand.New(rand.NewPCG(9, 10)), 10, 90)
	for _, r := range []*FrameReader{
		NewFrameReader(grouptest.AlignedReader{Image: image, Bad: bad}, testSegment, format.SegmentHeaderBytes,
			int64(len(image))),
		NewFrameReader(grouptest.AlignedReader{Image: image, Bad: nil}, testSegment, format.SegmentHeaderBytes,
			int64(len(image))+1),
	} {
		for r.Next() {
		}
		if !errors.Is(r.Err(), syscall.EIO) && !errors.Is(r.Err(), io.ErrUnexpectedEOF) {
			t.Error(r.Err())
		}
	}
}

func TestFrameReaderAllocatesNothingPerFrame(t *testing.T) {
	image, frames := buildImage(rand.New(rand.NewPCG(1, 2)), 1000, 500)
	n := testing.AllocsPerRun(5, func() {
		r := NewFrameReaderBytes(image, testSegment, format.SegmentHeaderBytes)
		for r.Next() {
		}
	})
	if n > 2 {
		t.Errorf("%v allocations for %d frames", n, len(frames))
	}
}

func BenchmarkFrameReader(b *testing.B) {
	for _, size := range []int{100, 1000, 10000} {
		image, _ := buildImage(rand.New(rand.NewPCG(1, 2)), 64<<20/size, 2*size)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(len(image)))
			for b.Loop() {
				r := NewFrameReaderBytes(image, testSegment, format.SegmentHeaderBytes)
				for r.Next() {
				}
			}
		})
	}
}
