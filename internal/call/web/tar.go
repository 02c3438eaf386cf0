package web

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sheaf.dev/sheaf/client/recordv1"
)

// These are the names of members that are not records. WebDataset skips names without a dot.
const (
	FailuresName = "FAILURES"
	ErrorName    = "ERROR"
)

const (
	blockBytes = 512
	// endBytes is the size of the two zero blocks at the end of an archive.
	endBytes = 2 * blockBytes
	// cutBytes is how much the header of the member ERROR promises beyond what follows.
	cutBytes = 512

	nameBytesMax   = 100
	prefixBytesMax = 155
	octalMax       = 1<<33 - 1 // the largest value of 11 octal digits
)

var zeros [endBytes]byte

// MemberBytesMax returns an upper bound of the bytes that AppendRecord appends besides the record's data.
func MemberBytesMax(r *recordv1.Record) int {
	n := 16*blockBytes + 6*len(r.GetKey().GetGroup())
	for k, v := range r.GetAttributes() {
		n += 6*(len(k)+len(v)) + 8
	}
	return n
}

// AppendRecord appends the JSON member of a record, and the header of its data member. The data and AppendPadding of
// their size follow.
func AppendRecord(dst []byte, r *recordv1.Record) []byte {
	id := strconv.FormatInt(r.GetKey().GetId(), 10)
	committed := time.Unix(0, r.GetCommitTimeUnixNs())
	text := AppendJSON(nil, r)
	dst = appendHeader(dst, r.GetKey().GetGroup(), id+".json", int64(len(text)), committed)
	dst = append(dst, text...)
	dst = AppendPadding(dst, int64(len(text)))
	return appendHeader(dst, r.GetKey().GetGroup(), id+".bin", r.GetSizeBytes(), committed)
}

// AppendPadding appends the zeros that follow the data of a member of this size.
func AppendPadding(dst []byte, size int64) []byte {
	return append(dst, zeros[:-size&(blockBytes-1)]...)
}

// AppendEnd appends the end of an archive.
func AppendEnd(dst []byte) []byte { return append(dst, zeros[:]...) }

// AppendFile appends a whole member that is not a record.
func AppendFile(dst []byte, name string, data []byte) []byte {
	dst = appendHeader(dst, "", name, int64(len(data)), time.Unix(0, 0))
	return AppendPadding(append(dst, data...), int64(len(data)))
}

// AppendCut appends the beginning of a member with the text of an error, whose end never follows. So every reader
// notices that the archive is cut.
func AppendCut(dst, text []byte) []byte {
	return append(appendHeader(dst, "", ErrorName, int64(len(text))+cutBytes, time.Unix(0, 0)), text...)
}

// appendHeader appends the header of a file. If ustar cannot express it, a PAX header comes first.
func appendHeader(dst []byte, folder, name string, size int64, modified time.Time) []byte {
	prefix, path, seconds := "", name, modified.Unix()
	if folder != "" {
		path = folder + "/" + name
	}
	if len(path) > nameBytesMax && folder != "" {
		prefix, path = folder, name
	}
	if len(path) > nameBytesMax || len(prefix) > prefixBytesMax || size > octalMax || seconds < 0 || seconds > octalMax {
		return appendPAX(dst, prefix, path, size, time.Unix(seconds, 0))
	}
	at := len(dst)
	dst = append(dst, zeros[:blockBytes]...)
	h := dst[at:]
	copy(h, path)
	copy(h[100:], "0000644\x000000000\x000000000\x00")
	octal(h[124:135], uint64(size))
	octal(h[136:147], uint64(seconds))
	copy(h[148:], "        0")
	copy(h[257:], "ustar\x0000")
	copy(h[345:], prefix)
	sum := uint64(0)
	for _, b := range h {
		sum += uint64(b)
	}
	octal(h[148:154], sum)
	h[154] = 0
	return dst
}

// octal fills a field with octal digits.
func octal(field []byte, value uint64) {
	for i := len(field) - 1; i >= 0; i-- {
		field[i] = '0' + byte(value&7)
		value >>= 3
	}
}

// appendPAX appends a header that needs PAX records.
func appendPAX(dst []byte, prefix, path string, size int64, modified time.Time) []byte {
	if prefix != "" {
		path = prefix + "/" + path
	}
	var out bytes.Buffer
	// The writer refuses only headers that PAX cannot express, such as names with a zero. No name of a record is one.
	_ = tar.NewWriter(&out).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Size: size, Mode: 0o644,
		ModTime: modified, Format: tar.FormatPAX})
	return append(dst, out.Bytes()...)
}

// AppendJSON appends the properties of a record as JSON, in one line.
func AppendJSON(dst []byte, r *recordv1.Record) []byte {
	dst = append(dst, `{"id":"`...)
	dst = strconv.AppendInt(dst, r.GetKey().GetId(), 10)
	dst = appendText(append(dst, `","group":`...), r.GetKey().GetGroup())
	dst = appendText(append(dst, `,"version":`...), r.GetVersion())
	dst = AppendTime(append(dst, `,"timestamp":"`...), r.GetTimestampUnixNs())
	dst = AppendTime(append(dst, `","commitTime":"`...), r.GetCommitTimeUnixNs())
	dst = append(dst, `","sizeBytes":`...)
	dst = strconv.AppendInt(dst, r.GetSizeBytes(), 10)
	if r.DataCrc32C != nil {
		dst = append(dst, fmt.Sprintf(`,"crc32c":"%08x"`, r.GetDataCrc32C())...)
	}
	if len(r.GetAttributes()) > 0 {
		dst = appendAttributes(dst, r.GetAttributes())
	}
	return append(dst, "}\n"...)
}

// AppendTime appends a Unix time in nanoseconds in RFC 3339, in UTC.
func AppendTime(dst []byte, ns int64) []byte {
	return time.Unix(0, ns).UTC().AppendFormat(dst, time.RFC3339Nano)
}

func appendAttributes(dst []byte, attributes map[string][]byte) []byte {
	texts, others := map[string]string{}, map[string]string{}
	for k, v := range attributes {
		if utf8.Valid(v) {
			texts[k] = string(v)
		} else {
			others[k] = base64.StdEncoding.EncodeToString(v)
		}
	}
	if len(texts) > 0 {
		dst = appendValue(append(dst, `,"attributes":`...), texts)
	}
	if len(others) > 0 {
		dst = appendValue(append(dst, `,"attributesBase64":`...), others)
	}
	return dst
}

// appendText appends a string as JSON.
func appendText(dst []byte, text string) []byte {
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) }) {
		return appendValue(dst, text)
	}
	return append(append(append(dst, '"'), text...), '"')
}

func appendValue(dst []byte, value any) []byte {
	text, err := json.Marshal(value)
	if err != nil { // strings and maps of strings can always be encoded
		text = []byte("null")
	}
	return append(dst, text...)
}
