package paging

import (
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// pageRequest is a request for a page.
type pageRequest struct {
	size  int32
	token string
}

func (a pageRequest) GetPageSize() int32   { return a.size }
func (a pageRequest) GetPageToken() string { return a.token }

func TestPageSizeLimits(t *testing.T) {
	for size, want := range map[int32]int{0: 0, 1: 1, 999: 999, 1000: 1000, 1001: 1000, 1<<31 - 1: 1000} {
		if p, _, err := Asked(Groups, pageRequest{size: size}); err != nil || p.Size != want || p.After != "" {
			t.Errorf("page_size %d: %+v, %v; want %d", size, p, err, want)
		}
	}
	for _, size := range []int32{-1, -1 << 31} {
		if _, field, err := Asked(Groups, pageRequest{size: size}); err == nil || field != "page_size" {
			t.Errorf("page_size %d: field %q, %v", size, field, err)
		}
	}
}

func TestTokenIsCompleteAndBoundToItsList(t *testing.T) {
	good := Token(Groups, "quotes")
	if p, _, err := Asked(Groups, pageRequest{token: good}); err != nil || p.After != "quotes" {
		t.Fatalf("%+v, %v", p, err)
	}
	bad := []string{"quotes", "A", "!", good + "A", good[1:], good + "=", " " + good, Token(Shards, "quotes"),
		strings.Repeat("A", 8), strings.Repeat("A", 1<<16)}
	for i := range good {
		other := []byte(good)
		other[i] ^= 1
		bad = append(bad, string(other))
	}
	for _, token := range bad {
		if p, field, err := Asked(Groups, pageRequest{token: token}); err == nil || field != "page_token" {
			t.Errorf("token %q is taken: %+v, field %q", token, p, field)
		}
	}
	if Token(Groups, "") != "" {
		t.Error("the first page has a token")
	}
}

// TestPagesAreTheList checks that all pages together are the listing, that each page keeps the limits, and that the
// rows of one name are on one page.
func TestPagesAreTheList(t *testing.T) {
	filler := strings.Repeat("x", BytesMax)
	soaktest.Check(t, func(t *rapid.T) {
		var rows []*recordv1.Group
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,3}`), 0, 30, rapid.ID).Draw(t, "names")
		slices.Sort(names)
		for _, name := range names {
			for range rapid.IntRange(1, 4).Draw(t, "rows") {
				size := rapid.SampledFrom([]int{0, 10, BytesMax / 3, BytesMax}).Draw(t, "bytes")
				rows = append(rows, &recordv1.Group{Group: name, Message: filler[:size]})
			}
		}
		nameOf := (*recordv1.Group).GetGroup
		p := Page{list: Groups, Size: rapid.IntRange(1, 10).Draw(t, "size")}
		window := rapid.IntRange(p.Size, 40).Draw(t, "names a server looks at for a page")
		var got []*recordv1.Group
		for n := 0; ; n++ {
			if n > len(names) {
				t.Fatal("the pages do not end")
			}
			i := slices.IndexFunc(rows, func(r *recordv1.Group) bool { return nameOf(r) > p.After })
			if i < 0 {
				i = len(rows)
			}
			seen := map[string]bool{}
			end := i
			for ; end < len(rows); end++ {
				if seen[nameOf(rows[end])] = true; len(seen) > window {
					break
				}
			}
			page, next := Cut(p, rows[i:end], nameOf, end < len(rows))
			on, bytes := map[string]bool{}, 0
			for _, r := range page {
				on[nameOf(r)], bytes = true, bytes+len(r.GetMessage())
			}
			if len(on) > p.Size || len(on) > 1 && bytes > BytesMax {
				t.Fatalf("a page of %d names and %d bytes", len(on), bytes)
			}
			got = append(got, page...)
			if next == "" {
				break
			}
			q, _, err := Asked(Groups, pageRequest{size: int32(p.Size), token: next})
			if err != nil || len(page) == 0 {
				t.Fatalf("a page of %d rows and the next token %q: %v", len(page), next, err)
			}
			p = q
		}
		if !slices.Equal(got, rows) {
			t.Fatalf("%d rows on pages, want %d", len(got), len(rows))
		}
	})
}

// FuzzToken checks that a token with a valid checksum has only one spelling, and holds the name after which its page
// begins.
func FuzzToken(f *testing.F) {
	f.Add([]byte("quotes"), byte(Groups))
	f.Add([]byte{}, byte(Groups))
	f.Add([]byte{0xff, 0}, byte(0xff))
	f.Fuzz(func(t *testing.T, name []byte, list byte) {
		b := append([]byte{list}, name...)
		b = binary.LittleEndian.AppendUint32(b, crc32c.Of(b))
		token := base64.RawURLEncoding.EncodeToString(b)
		p, _, err := Asked(Groups, pageRequest{token: token})
		if err == nil && (p.After == "" || Token(Groups, p.After) != token) {
			t.Errorf("%q begins behind %q, whose token is %q", token, p.After, Token(Groups, p.After))
		}
		if good := List(list) == Groups && len(name) > 0; good != (err == nil) {
			t.Errorf("list %d, name %q: %v", list, name, err)
		}
	})
}
