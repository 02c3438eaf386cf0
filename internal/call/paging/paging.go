// Package paging divides listings into pages according to AIP-158: a size above the limit is reduced, and tokens are
// opaque and checked. A token holds the last name of the page before it, so that a server stores nothing between two
// pages. All functions are pure and never panic.
package paging

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/base/crc32c"
)

// These are the limits of a page.
const (
	NamesMax = 1000    // maximum number of names on a page
	BytesMax = 1 << 20 // limit on the encoded bytes of a page; if one name's rows exceed it, they form a page of their own
)

// List is a kind of listing. A token of one listing is refused by the other listings.
type List byte

// These are the listings that have pages.
const (
	Groups List = 'g'
	Shards List = 's'
	Moves  List = 'm'
)

// Page is the part of a listing that a request asks for.
type Page struct {
	list List
	// After is the name after which the page begins. It is empty for the first page.
	After string
	// Size is the maximum number of names. It is 0 if the request asks for the whole listing in one response.
	Size int
}

// Request is a request for a page.
type Request interface {
	GetPageSize() int32
	GetPageToken() string
}

// Asked returns the page that a request asks for. If a field of the request is invalid, field names it, and err
// explains the fault and lists the valid values.
func Asked(list List, in Request) (p Page, field string, err error) {
	if in.GetPageSize() < 0 {
		return Page{}, "page_size", fmt.Errorf("is %d: give 1 to %d, or 0 for all in one answer", in.GetPageSize(), NamesMax)
	}
	p = Page{list: list, Size: min(int(in.GetPageSize()), NamesMax)}
	if in.GetPageToken() != "" {
		if p.After, err = parse(list, in.GetPageToken()); err != nil {
			return Page{}, "page_token", err
		}
	}
	return p, "", nil
}

// Cut returns the page's rows, and the next page's token, which is empty if there is no next page. The rows must be
// those after p.After, in the order of the listing. The argument more is true if the listing has further rows after
// these. Rows of one name are never divided between two pages.
func Cut[R proto.Message](p Page, rows []R, name func(R) string, more bool) (page []R, next string) {
	if p.Size == 0 {
		return rows, ""
	}
	names, bytes := 0, 0
	for i := 0; i < len(rows); {
		end, size := i, 0
		for ; end < len(rows) && name(rows[end]) == name(rows[i]); end++ {
			size += proto.Size(rows[end])
		}
		if names++; names > p.Size || names > 1 && bytes+size > BytesMax {
			return rows[:i], Token(p.list, name(rows[i-1]))
		}
		i, bytes = end, bytes+size
	}
	if more && len(rows) > 0 {
		next = Token(p.list, name(rows[len(rows)-1]))
	}
	return rows, next
}

var errToken = errors.New("is not one that this listing gave out: begin again without a token")

// Token returns the token of the page that begins after a name. The token of the first page is empty. Its bytes are the
// listing (1), the name, and the CRC32C of both (4, little-endian).
func Token(list List, after string) string {
	if after == "" {
		return ""
	}
	b := append([]byte{byte(list)}, after...)
	b = binary.LittleEndian.AppendUint32(b, crc32c.Of(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

// parse is the inverse of Token.
func parse(list List, token string) (after string, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	n := len(b) - 4
	if err != nil || n < 2 || b[0] != byte(list) ||
		crc32c.Of(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return "", errToken
	}
	return string(b[1:n]), nil
}
