package web

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
)

// Go's own reader of archives understands each header, also those that ustar cannot express.
func TestHeaders(t *testing.T) {
	for name, r := range map[string]*recordv1.Record{
		"small":                {SizeBytes: 3, CommitTimeUnixNs: 1_700_000_000_123_456_789},
		"before 1970":          {SizeBytes: 3, CommitTimeUnixNs: -5_000_000_000},
		"a group of 95 bytes":  {Key: &recordv1.RecordKey{Group: strings.Repeat("g", 95)}},
		"a group of 155 bytes": {Key: &recordv1.RecordKey{Group: strings.Repeat("g", 155)}},
		"a group of 253 bytes": {Key: &recordv1.RecordKey{Group: strings.Repeat("g", 253), Id: -1 << 63}},
		"8 GiB":                {SizeBytes: 8 << 30},
		"less than 8 GiB":      {SizeBytes: 8<<30 - 1},
	} {
		if r.Key == nil {
			r.Key = &recordv1.RecordKey{Group: "a.b", Id: 7}
		}
		about := AppendJSON(nil, r)
		archive := tar.NewReader(bytes.NewReader(AppendRecord(nil, r)))
		for _, want := range []struct {
			name string
			size int64
		}{{".json", int64(len(about))}, {".bin", r.GetSizeBytes()}} {
			h, err := archive.Next()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !strings.HasPrefix(h.Name, r.Key.Group+"/") || !strings.HasSuffix(h.Name, want.name) || h.Size != want.size ||
				h.Mode != 0o644 || !h.ModTime.Equal(time.Unix(r.CommitTimeUnixNs/1e9, 0).Truncate(time.Second)) &&
				r.CommitTimeUnixNs >= 0 {
				t.Errorf("%s: %+v", name, h)
			}
			if want.name == ".json" {
				if text, err := io.ReadAll(archive); err != nil || !bytes.Equal(text, about) {
					t.Errorf("%s: %s, %v", name, text, err)
				}
			}
		}
	}
}

func TestTheMemberOfAnErrorIsCut(t *testing.T) {
	cut := AppendCut(AppendFile(nil, "x.y", []byte("z")), []byte(`{"error":{}}`))
	archive := tar.NewReader(bytes.NewReader(cut))
	if _, err := archive.Next(); err != nil {
		t.Fatal(err)
	}
	h, err := archive.Next()
	if err != nil || h.Name != ErrorName {
		t.Fatalf("%+v, %v", h, err)
	}
	if _, err := io.Copy(io.Discard, archive); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// Each id is in exactly one part, and a part overlaps the keys of its ids.
func TestSplitsDivideTheIDs(t *testing.T) {
	for _, of := range []int{1, 2, 3, 1000, 65536} {
		for _, id := range []int64{0, 1, -1, -1 << 63, 1<<63 - 1, 12345} {
			n := 0
			for part := range of {
				if (Split{part, of}).Has(id) {
					n++
				}
			}
			if n != 1 || !(Split{}).Has(id) {
				t.Errorf("id %d is in %d of %d parts", id, n, of)
			}
		}
	}
	if s := (Split{1, 4}); s.Overlaps(0, 1<<62-1) || !s.Overlaps(0, 1<<62) || !s.Overlaps(1<<63-1, 1<<64-1) ||
		s.Overlaps(1<<63, 1<<64-1) {
		t.Error("part 1 of 4 has other keys than the second quarter")
	}
}
