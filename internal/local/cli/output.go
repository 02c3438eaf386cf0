package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"
)

// SortedKeys returns the keys of a map, sorted.
func SortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// Output is the output of a command, with data on Out and messages on Err.
type Output struct {
	Out  io.Writer
	Err  io.Writer
	JSON bool

	mu   sync.Mutex // guards line and writes to Err
	line string     // the last line of a terminal, which SetLine rewrites; empty if there is none
}

// Sayf writes a line of text. Safe for concurrent use.
func (o *Output) Sayf(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.line != "" {
		fmt.Fprint(o.Err, clearLine)
	}
	fmt.Fprintf(o.Err, format+"\n", args...)
	fmt.Fprint(o.Err, o.line)
}

// clearLine returns to the start of the terminal line and clears it.
const clearLine = "\r\x1b[K"

// SetLine rewrites the last line of a terminal, truncated to the terminal's width. With an empty text, it removes the
// line. Lines that Sayf writes appear above that line. SetLine must be called only if Terminal is true. Safe for
// concurrent use.
func (o *Output) SetLine(line string) {
	if f, ok := o.Err.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && len(line) >= width {
			line = line[:max(width-1, 0)]
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line = line
	fmt.Fprint(o.Err, clearLine+line)
}

// EncodeJSON writes v as one indented JSON document.
func EncodeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// WriteJSON writes v to Out as EncodeJSON does.
func (o *Output) WriteJSON(v any) error {
	if err := EncodeJSON(o.Out, v); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// Print writes the result of a command to Out: v as JSON, or the formatted text.
func (o *Output) Print(v any, format string, args ...any) error {
	if o.JSON {
		return o.WriteJSON(v)
	}
	_, err := fmt.Fprintf(o.Out, format, args...)
	return err
}

// WriteRows writes rows to Out: as JSON, or as the table t.
func (o *Output) WriteRows(rows any, t Table) error {
	if o.JSON {
		return o.WriteJSON(rows)
	}
	return o.WriteTable(t)
}

// Table writes rows in columns. A cell may have a colour, which is left out if the output is not a terminal or NO_COLOR
// is set.
type Table struct {
	Header []string
	Rows   [][]Cell
}

// Cell is a cell of a Table.
type Cell struct {
	Text   string
	Colour Colour
	Right  bool // aligned to the right
}

// Colour is the colour of a Cell.
type Colour string

// These are the colours of cells. Plain means no colour.
const (
	Plain  Colour = ""
	Green  Colour = "\x1b[32m"
	Yellow Colour = "\x1b[33m"
	Red    Colour = "\x1b[31m"
)

// ColourEnd ends coloured text.
const ColourEnd Colour = "\x1b[0m"

// Text returns a plain cell. The cell has one line: line breaks, for example between joined errors, become semicolons.
func Text(s string) Cell { return Cell{Text: strings.ReplaceAll(s, "\n", "; ")} }

// Number returns a cell that is aligned to the right.
func Number(s string) Cell { return Cell{Text: s, Right: true} }

// WriteTable writes t to Out.
func (o *Output) WriteTable(t Table) error {
	if _, err := io.WriteString(o.Out, t.Format(o.Colour())); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// Format returns the lines of t, with or without colours.
func (t *Table) Format(colour bool) string {
	widths := make([]int, len(t.Header))
	for i, h := range t.Header {
		widths[i] = utf8.RuneCountInString(h)
	}
	for _, row := range t.Rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	header := make([]Cell, len(t.Header))
	for i, h := range t.Header {
		header[i] = Cell{Text: h, Right: len(t.Rows) > 0 && t.Rows[0][i].Right}
	}
	var b strings.Builder
	for _, row := range append([][]Cell{header}, t.Rows...) {
		writeRow(&b, row, widths, colour)
	}
	return b.String()
}

func writeRow(b *strings.Builder, row []Cell, widths []int, colour bool) {
	for i, c := range row {
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.Text))
		text := c.Text
		if colour && c.Colour != Plain {
			text = string(c.Colour) + text + string(ColourEnd)
		}
		switch {
		case c.Right:
			b.WriteString(pad + text)
		case i == len(row)-1:
			b.WriteString(text)
		default:
			b.WriteString(text + pad)
		}
		if i < len(row)-1 {
			b.WriteString("  ")
		}
	}
	b.WriteByte('\n')
}

// Colour reports whether Out may have colours: it is a terminal, and NO_COLOR is not set (no-color.org).
func (o *Output) Colour() bool {
	return os.Getenv("NO_COLOR") == "" && isTerminal(o.Out)
}

// Terminal reports whether Err is a terminal.
func (o *Output) Terminal() bool { return isTerminal(o.Err) }

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
