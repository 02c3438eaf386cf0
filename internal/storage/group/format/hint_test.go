package format

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/google/uuid"
)

func sampleHint() *Hint {
	h := &Hint{Segment: testSegment, FirstIndex: 10, LastIndex: 200, LastCommit: 99, Bytes: 1 << 20,
		Terms: []TermRun{{10, 1}, {50, 3}},
		Blobs: []HintBlob{{Index: 12, Ref: BlobRef{ID: uuid.UUID{1}, Size: 2 << 20, CRC32C: 5}}}}
	for i := range 71 {
		h.IDs = append(h.IDs, int64(i)*7-100)
		h.Places = append(h.Places, uint64(128+88*i)/8<<16|2<<1|uint64(i%2))
		h.Indexes = append(h.Indexes, uint32(i))
	}
	h.Used = make([]uint64, 2)
	for i := range 71 {
		h.SetUsed(i, i%3 != 0)
	}
	orderRows(h)
	return h
}

func TestEveryBitOfAHintIsChecked(t *testing.T) {
	want := sampleHint()
	b, err := want.Encode()
	ok(t, err)
	got, err := DecodeHint(bytes.Clone(b))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	odd := append(make([]byte, 1, len(b)+1), b...)
	if got, err := DecodeHint(odd[1:]); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("from an odd address: %+v, %v", got, err)
	}
	flipEveryBit(t, b, func() error { _, err := DecodeHint(b); return err })
	for n := range b {
		if _, err := DecodeHint(b[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

func TestHintWithARightChecksumAndWrongContentIsRefused(t *testing.T) {
	good, err := sampleHint().Encode()
	ok(t, err)
	l := layoutHint(71, 2, 1)
	flip := func(at int64) func(b []byte) { return func(b []byte) { b[at] ^= 0x50 } }
	for what, change := range map[string]func(b []byte){
		"reserved bytes":                   flip(76),
		"more requests than there is room": flip(75),
		"padding behind the indexes":       flip(l.used - 1),
		"used flags behind the last row":   flip(l.terms - 1),
		"ordinal of a place":               flip(l.indexes - 1),
		"index above the last":             flip(l.indexes + 3),
		"order of the rows":                flip(hintHeaderBytes + 8*40),
		"first index":                      flip(31),
		"count of rows":                    flip(56),
		"count of blobs":                   flip(68),
		"term run out of order":            flip(l.terms + 7),
		"index of a blob":                  flip(l.blobs + 7),
		"reference of a blob":              flip(l.blobs + 8),
		"size of the segment, impossible":  flip(47),
		"size of the segment, too small":   func(b []byte) { b[42] = 0 },
		"last index below the first index": func(b []byte) { b[32] = 1 },
	} {
		b := bytes.Clone(good)
		change(b)
		putUint32(b[12:], headChecksum(b))
		if _, err := DecodeHint(b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestHintWithoutRowsRoundTrips(t *testing.T) {
	want := &Hint{FirstIndex: 1, Bytes: 128}
	b, err := want.Encode()
	ok(t, err)
	if got, err := DecodeHint(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}
