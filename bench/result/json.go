package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// jsonBytesMax limits the size of a report file. Reading a larger file fails.
const jsonBytesMax = 256 << 20

// WriteJSON checks the report and writes it.
func (r *Report) WriteJSON(w io.Writer) error {
	if err := r.Check(); err != nil {
		return fmt.Errorf("benchmark report: %w", err)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// ReadJSON reads a report and checks it.
func ReadJSON(in io.Reader) (*Report, error) {
	limited := &io.LimitedReader{R: in, N: jsonBytesMax + 1}
	raw, err := io.ReadAll(limited)
	if err != nil {
		return nil, err
	}
	if limited.N <= 0 {
		return nil, fmt.Errorf("more than %d bytes", jsonBytesMax)
	}
	var r Report
	var what *json.UnmarshalTypeError
	if err := json.Unmarshal(raw, &r); errors.As(err, &what) {
		return nil, fmt.Errorf("field %s at byte %d is a %s", what.Field, what.Offset, what.Value)
	} else if err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	return &r, nil
}

// ReadFile reads the report in a file.
func ReadFile(name string) (*Report, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // a file that was only read loses nothing if Close fails
	r, err := ReadJSON(f)
	if err != nil {
		return nil, fmt.Errorf("%s is no benchmark report: %w", name, err)
	}
	return r, nil
}
