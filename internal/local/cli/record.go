package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/base/crc32c"
)

// RecordJSON is a record as the commands print it. Numbers that a JSON reader may round (ids) are strings. Attribute
// values that are not UTF-8 are in base64 in AttributesBase64.
type RecordJSON struct {
	ID               string            `json:"id"`
	Group            string            `json:"group"`
	Version          string            `json:"version"`
	Timestamp        string            `json:"timestamp"`
	CommitTime       string            `json:"commitTime"`
	SizeBytes        int64             `json:"sizeBytes"`
	CRC32C           string            `json:"crc32c,omitempty"`
	Deleted          bool              `json:"deleted,omitempty"`
	Attributes       map[string]string `json:"attributes,omitempty"`
	AttributesBase64 map[string]string `json:"attributesBase64,omitempty"`
	Data             *string           `json:"data,omitempty"` // in base64
}

// JSONOf converts a record to RecordJSON, without data.
func JSONOf(r client.Record) RecordJSON {
	out := RecordJSON{
		ID:         strconv.FormatInt(r.Key.ID, 10),
		Group:      r.Key.Group,
		Version:    r.Version,
		Timestamp:  FormatTime(r.Timestamp),
		CommitTime: FormatTime(r.CommitTime),
		SizeBytes:  r.Size,
		Deleted:    r.Deleted,
		Attributes: map[string]string{}, AttributesBase64: map[string]string{},
	}
	if r.HasData {
		out.CRC32C = FormatCRC(crc32c.Of(r.Data))
	}
	for k, v := range r.Attributes {
		if utf8.Valid(v) {
			out.Attributes[k] = string(v)
		} else {
			out.AttributesBase64[k] = base64.StdEncoding.EncodeToString(v)
		}
	}
	return out
}

// FormatTime formats a time as RFC 3339, in UTC.
func FormatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// FormatCRC formats a CRC32C as 8 hexadecimal digits.
func FormatCRC(crc uint32) string { return fmt.Sprintf("%08x", crc) }

// WriteJSONLine writes a record as one line of JSON. It copies the record's data from the reader in the argument
// data, in base64 and in pieces, so that the data may have any size. If data is nil, the line has no data.
func WriteJSONLine(w io.Writer, r client.Record, data io.Reader) error {
	line, err := json.Marshal(JSONOf(r))
	if err != nil {
		return fmt.Errorf("record %d as JSON: %w", r.Key.ID, err)
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
func RecordTable(records []client.Record) Table {
	t := Table{Header: []string{"ID", "GROUP", "VERSION", "SIZE", "TIMESTAMP", "COMMITTED", "ATTRIBUTES"}}
	for _, r := range records {
		size := Number(FormatBytes(r.Size))
		if r.Deleted {
			size = Cell{Text: "deleted", Right: true, Colour: Yellow}
		}
		t.Rows = append(t.Rows, []Cell{
			Text(strconv.FormatInt(r.Key.ID, 10)), Text(r.Key.Group), Text(r.Version), size,
			Text(FormatTime(r.Timestamp)), Text(FormatTime(r.CommitTime)), Text(attributeWords(r.Attributes)),
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
	slices.Sort(pairs)
	return strings.Join(pairs, " ")
}

// printable reports whether a value can be printed unchanged. Escape sequences in a value must not reach the terminal.
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

// displayName returns a file's name for messages, quoted if it contains special characters.
func displayName(name string) string {
	if strings.Contains(name, " ") && printable([]byte(strings.ReplaceAll(name, " ", "_"))) {
		return name
	}
	if printable([]byte(name)) {
		return name
	}
	return strconv.QuoteToASCII(name)
}

// shortName is like displayName, but leaves out the middle of a very long name.
func shortName(name string) string {
	const most = 256
	name = displayName(name)
	if len(name) <= most {
		return name
	}
	head, tail := name[:most/2], name[len(name)-most/2:]
	return fmt.Sprintf("%s...%s (%d bytes)", strings.ToValidUTF8(head, ""), strings.ToValidUTF8(tail, ""), len(name))
}

// IDsWords returns a phrase with the ids of the damaged records, which is appended to a message. It returns "" if the
// damage affects no records.
func IDsWords(ids []int64, unknown bool) string {
	switch {
	case unknown:
		return "; ids unknown"
	case len(ids) == 0:
		return ""
	case len(ids) == 1:
		return fmt.Sprintf("; id %d", ids[0])
	}
	return "; ids " + strings.Trim(fmt.Sprint(ids), "[]")
}
