// Package web defines the requests and answers of records over HTTP: paths, ranges, members of tar archives and errors.
// It opens no connection and makes no call. docs/http.md describes every byte.
package web

import (
	"fmt"
	"math/bits"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"sheaf.dev/sheaf/client/call/routing"
)

// These are the paths that are served.
const (
	RecordPrefix = "/v1/records/"
	ScanPath     = "/v1/scan.tar"
	BatchPath    = "/v1/batch.tar"
)

// AnyGroup stands for the group of the id, in Hash routing.
const AnyGroup = "-"

// splitsMax is the largest number of parts of a scan.
const splitsMax = 65536

// BadRequestError is the error for a request that cannot be understood.
type BadRequestError struct {
	Field string // the part of the request that is wrong
	Text  string
}

// Error implements error.
func (e *BadRequestError) Error() string { return e.Field + ": " + e.Text }

func bad(field, format string, args ...any) error {
	return &BadRequestError{field, fmt.Sprintf(format, args...)}
}

// RecordPath returns the group and the id in a path that begins with RecordPrefix. It does not check the group.
func RecordPath(path string) (group string, id int64, err error) {
	group, text, found := strings.Cut(strings.TrimPrefix(path, RecordPrefix), "/")
	if !found || group == "" {
		return "", 0, bad("path", "%.80q is not %sGROUP/ID", path, RecordPrefix)
	}
	id, err = parseID(text)
	if err != nil {
		return "", 0, bad("path", "the id %.40q is not a decimal number from -9223372036854775808 to "+
			"9223372036854775807 in its shortest form", text)
	}
	return group, id, nil
}

// parseID parses an id, which has only one spelling.
func parseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err == nil && strconv.FormatInt(id, 10) != text {
		err = strconv.ErrSyntax
	}
	return id, err
}

// Parameters returns the parameters of a query, of which each may occur once, and only if it is known.
func Parameters(u *url.URL, known ...string) (map[string]string, error) {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, bad("query", "cannot be read: %.80s", err)
	}
	out := map[string]string{}
	for _, name := range known {
		if all := values[name]; len(all) > 1 {
			return nil, bad(name, "is given %d times: give it once", len(all))
		} else if len(all) == 1 {
			out[name] = all[0]
		}
		delete(values, name)
	}
	for name := range values {
		return nil, bad("query", "%.40q is no parameter of this path: there are %s", name, strings.Join(known, ", "))
	}
	return out, nil
}

// Split is one of Of parts of the key space. The zero value is the whole key space.
type Split struct{ Part, Of int }

// ParseSplit parses "i/n". An empty text is the whole key space.
func ParseSplit(text string) (Split, error) {
	if text == "" {
		return Split{}, nil
	}
	part, of, found := strings.Cut(text, "/")
	i, errPart := parseID(part)
	n, errOf := parseID(of)
	if !found || errPart != nil || errOf != nil || n < 1 || n > splitsMax || i < 0 || i >= n {
		return Split{}, bad("split", "%.40q is not I/N, with N from 1 to %d and I from 0 to N-1", text, splitsMax)
	}
	return Split{Part: int(i), Of: int(n)}, nil
}

// Has reports whether a record is in the part.
func (s Split) Has(id int64) bool {
	return s.Of == 0 || s.partOf(routing.Key(id)) == s.Part
}

func (s Split) partOf(key uint64) int {
	part, _ := bits.Mul64(key, uint64(s.Of))
	return int(part)
}

// Overlaps reports whether a record with a key from first to last, both inclusive, can be in the part.
func (s Split) Overlaps(first, last uint64) bool {
	return s.Of == 0 || s.partOf(first) <= s.Part && s.Part <= s.partOf(last)
}

// ETag returns the entity tag of a version.
func ETag(version string) string { return `"` + version + `"` }

// Matches reports whether a header If-None-Match names a version.
func Matches(header []string, version string) bool {
	for _, line := range header {
		for tag := range strings.SplitSeq(line, ",") {
			tag = strings.TrimSpace(tag)
			if tag == "*" || strings.TrimPrefix(tag, "W/") == ETag(version) {
				return true
			}
		}
	}
	return false
}

// Range is a range of bytes of a record.
type Range struct{ First, Length int64 }

// RangeOf returns the range that a request asks for, of a record of size bytes and with this version. The result asked
// is false if the whole record is to follow. If no byte of the record is in the range, ok is false.
func RangeOf(h http.Header, version string, size int64) (r Range, asked, ok bool) {
	whole := Range{0, size}
	lines := h.Values("Range")
	if only := h.Get("If-Range"); len(lines) != 1 || only != "" && only != ETag(version) {
		return whole, false, true
	}
	text, is := strings.CutPrefix(lines[0], "bytes=")
	from, to, dash := strings.Cut(strings.TrimSpace(text), "-")
	first, errFirst := strconv.ParseUint(from, 10, 64)
	last, errLast := strconv.ParseUint(to, 10, 64)
	switch {
	case !is || !dash || !digits(from) || !digits(to) || from == "" && to == "":
		return whole, false, true
	case from == "":
		// A length that no int64 holds is more than the record has.
		if errLast != nil || last > uint64(size) {
			last = uint64(size)
		}
		return Range{size - int64(last), int64(last)}, true, last > 0
	case to != "" && errFirst == nil && errLast == nil && last < first:
		return whole, false, true
	case errFirst != nil || first >= uint64(size):
		return whole, true, false
	case to == "" || errLast != nil || last >= uint64(size):
		last = uint64(size) - 1
	}
	return Range{int64(first), int64(last-first) + 1}, true, true
}

func digits(text string) bool {
	return strings.Trim(text, "0123456789") == ""
}
