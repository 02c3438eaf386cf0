package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// These are the limits of a batch.
const (
	BatchBytesMax = 8 << 20
	BatchIDsMax   = 100_000
)

// Batch is the body of a request for a batch.
type Batch struct {
	Group string
	View  *string
	IDs   []int64
}

// TooLargeError is the error for a batch above a limit.
type TooLargeError struct{ Text string }

// Error implements error.
func (e *TooLargeError) Error() string { return e.Text }

// ErrTooLong is the error for a body above BatchBytesMax.
var ErrTooLong = &TooLargeError{fmt.Sprintf("the body has more than %d bytes: ask for fewer ids at a time",
	BatchBytesMax)}

// id is a number, or a string that holds one.
type id int64

// UnmarshalJSON implements json.Unmarshaler.
func (i *id) UnmarshalJSON(text []byte) error {
	plain := text
	if n := len(text); n > 1 && text[0] == '"' {
		plain = text[1 : n-1]
	}
	value, err := parseID(string(plain))
	if err != nil {
		return bad("ids", "%.40s is not a decimal number from -9223372036854775808 to 9223372036854775807 in its shortest "+
			"form, or a string with one", text)
	}
	*i = id(value)
	return nil
}

// ParseBatch reads the body of a batch. Errors are BadRequestError, TooLargeError, or those of the reader.
func ParseBatch(body io.Reader) (*Batch, error) {
	limited := &io.LimitedReader{R: body, N: BatchBytesMax + 1}
	d := json.NewDecoder(limited)
	b := &Batch{}
	err := b.decode(d)
	if err == nil {
		_, err = d.Token()
		if errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = bad("body", "something follows the object")
		}
	}
	if limited.N == 0 {
		return nil, ErrTooLong
	}
	if err != nil {
		return nil, wrongBody(err)
	}
	if len(b.IDs) == 0 {
		return nil, bad("ids", "at least one is required")
	}
	return b, nil
}

// wrongBody returns the error for a body that is not the JSON of a batch. It returns an error of the reader unchanged.
func wrongBody(err error) error {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	if errors.As(err, &syntax) || errors.As(err, &kind) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return bad("body", `is not {"group": "...", "ids": [...]}: %.200s`, err.Error())
	}
	return err
}

func (b *Batch) decode(d *json.Decoder) error {
	if err := delimiter(d, '{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		if seen[name] {
			return bad(name, "is given twice")
		}
		seen[name] = true
		switch name {
		case "group":
			err = d.Decode(&b.Group)
		case "view":
			err = d.Decode(&b.View)
		case "ids":
			err = b.decodeIDs(d)
		default:
			err = bad("body", "%.40q is no field: there are group, ids and view", name)
		}
		if err != nil {
			return err
		}
	}
	return delimiter(d, '}')
}

func (b *Batch) decodeIDs(d *json.Decoder) error {
	if err := delimiter(d, '['); err != nil {
		return err
	}
	for d.More() {
		if len(b.IDs) == BatchIDsMax {
			return &TooLargeError{fmt.Sprintf("more than %d ids: ask for fewer at a time", BatchIDsMax)}
		}
		var next id
		if err := d.Decode(&next); err != nil {
			return err
		}
		b.IDs = append(b.IDs, int64(next))
	}
	return delimiter(d, ']')
}

func delimiter(d *json.Decoder, want json.Delim) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	if token != want {
		return bad("body", `is not {"group": "...", "ids": [...]}: %.40v is not %s`, token, want)
	}
	return nil
}
