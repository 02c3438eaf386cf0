package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
)

// RecordJSON is a record as the commands print it. Numbers that a JSON reader may round (ids) are strings. Attribute values
// that are not UTF-8 stand in base64 under attributes_base64.
type RecordJSON struct {
	ID               string            `json:"id"`
	Group            string            `json:"group"`
	Version          string            `json:"version"`
	Timestamp        string            `json:"timestamp"`
	CommitTime       string            `json:"commit_time"`
	SizeBytes        int64             `json:"size_bytes"`
	CRC32C           string            `json:"crc32c,omitempty"`
	Deleted          bool              `json:"deleted,omitempty"`
	Attributes       map[string]string `json:"attributes,omitempty"`
	AttributesBase64 map[string]string `json:"attributes_base64,omitempty"`
	Data             *string           `json:"data,omitempty"` // base64
}

// JSONOf turns a record into its printed form, without data.
func JSONOf(r *recordv1.Record) RecordJSON {
	out := RecordJSON{
		ID:         strconv.FormatInt(r.GetKey().GetId(), 10),
		Group:      r.GetKey().GetGroup(),
		Version:    r.GetVersion(),
		Timestamp:  FormatTime(r.GetTimestampUnixNs()),
		CommitTime: FormatTime(r.GetCommitTimeUnixNs()),
		SizeBytes:  r.GetSizeBytes(),
		Deleted:    r.GetDeleted(),
	}
	if r.DataCrc32C != nil {
		out.CRC32C = FormatCRC(r.GetDataCrc32C())
	}
	for k, v := range r.GetAttributes() {
		if utf8.Valid(v) {
			if out.Attributes == nil {
				out.Attributes = map[string]string{}
			}
			out.Attributes[k] = string(v)
			continue
		}
		if out.AttributesBase64 == nil {
			out.AttributesBase64 = map[string]string{}
		}
		out.AttributesBase64[k] = base64.StdEncoding.EncodeToString(v)
	}
	return out
}

// FormatTime writes Unix nanoseconds as RFC 3339, in UTC.
func FormatTime(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }

// FormatCRC writes a CRC32C as 8 hexadecimal digits.
func FormatCRC(crc uint32) string { return fmt.Sprintf("%08x", crc) }

// WriteJSONLine writes a record and its data, read from data, as one line of JSON. The data may be of any size: it is
// streamed. A nil data leaves the field out.
func WriteJSONLine(w io.Writer, r *recordv1.Record, data io.Reader) error {
	line, err := json.Marshal(JSONOf(r))
	if err != nil {
		return fmt.Errorf("record %d as JSON: %w", r.GetKey().GetId(), err)
	}
	if data == nil {
		_, err = w.Write(append(line, '\n'))
		return err
	}
	if _, err = w.Write(append(line[:len(line)-1], `,"data":"`...)); err != nil {
		return err
	}
	encoder := base64.NewEncoder(base64.StdEncoding, w)
	if _, err = io.Copy(encoder, data); err != nil {
		return err
	}
	if err = encoder.Close(); err != nil {
		return err
	}
	_, err = io.WriteString(w, "\"}\n")
	return err
}

// RecordTable lists records without data.
func RecordTable(records []*recordv1.Record) Table {
	t := Table{Header: []string{"ID", "GROUP", "VERSION", "SIZE", "TIMESTAMP", "COMMITTED", "ATTRIBUTES"}}
	for _, r := range records {
		size := Number(FormatBytes(r.GetSizeBytes()))
		if r.GetDeleted() {
			size = Cell{Text: "deleted", Right: true, Colour: Yellow}
		}
		t.Rows = append(t.Rows, []Cell{
			Text(strconv.FormatInt(r.GetKey().GetId(), 10)),
			Text(r.GetKey().GetGroup()),
			Text(r.GetVersion()),
			size,
			Text(FormatTime(r.GetTimestampUnixNs())),
			Text(FormatTime(r.GetCommitTimeUnixNs())),
			Text(attributeWords(r.GetAttributes())),
		})
	}
	return t
}

func attributeWords(attributes map[string][]byte) string {
	pairs := make([]string, 0, len(attributes))
	for k, v := range attributes {
		if printable(v) {
			pairs = append(pairs, k+"="+string(v))
		} else {
			pairs = append(pairs, k+"="+strconv.QuoteToASCII(string(v)))
		}
	}
	sort.Strings(pairs)
	return strings.Join(pairs, " ")
}

// printable tells whether a value can be shown as it is: an escape sequence in it must not reach the terminal.
func printable(v []byte) bool {
	if !utf8.Valid(v) {
		return false
	}
	for _, r := range string(v) {
		if !strconv.IsPrint(r) || r == ' ' {
			return false
		}
	}
	return len(v) > 0
}

// DisplayName is a file's name for messages: quoted where it holds anything odd.
func DisplayName(name string) string {
	if strings.Contains(name, " ") && printable([]byte(strings.ReplaceAll(name, " ", "_"))) {
		return name
	}
	if printable([]byte(name)) {
		return name
	}
	return strconv.QuoteToASCII(name)
}

// shortName is DisplayName, without its middle where it is very long.
func shortName(name string) string {
	const most = 256
	name = DisplayName(name)
	if len(name) <= most {
		return name
	}
	head, tail := name[:most/2], name[len(name)-most/2:]
	return fmt.Sprintf("%s...%s (%d bytes)", strings.ToValidUTF8(head, ""), strings.ToValidUTF8(tail, ""), len(name))
}
