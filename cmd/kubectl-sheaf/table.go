package main

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// column describes a column of a table. If the screen is too narrow, the column with the highest drop value is hidden
// first. A column with drop 0 is never hidden.
type column struct {
	name  string
	drop  int
	right bool
	words bool // the cells contain sentences, which are cut off at their end if they are too long
}

// table holds columns and rows.
type table struct {
	columns []column
	rows    [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

const (
	gap     = 2  // number of spaces between two columns
	cellMin = 12 // minimum width of a truncated cell
)

// lines returns the lines of the table. If they are too wide, it first hides optional columns and then truncates the
// widest column.
func (t *table) lines(width int) []string {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = utf8.RuneCountInString(c.name)
		empty := true
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
			empty = empty && row[i] == ""
		}
		if empty && c.drop > 0 {
			widths[i] = 0 // an optional column without contents is hidden
		}
	}
	for sum(widths) > width && t.dropOne(widths) {
	}
	for over := sum(widths) - width; over > 0; over = sum(widths) - width {
		widest := slices.Index(widths, slices.Max(widths))
		if widths[widest] <= cellMin {
			break
		}
		widths[widest] = max(cellMin, widths[widest]-over)
	}
	names := make([]string, len(t.columns))
	for i, c := range t.columns {
		names[i] = c.name
	}
	out := append(make([]string, 0, 1+len(t.rows)), t.line(names, widths))
	for _, row := range t.rows {
		out = append(out, t.line(row, widths))
	}
	return out
}

// sum returns the total width of the visible columns and the gaps between them.
func sum(widths []int) int {
	n := 0
	for _, w := range widths {
		if w > 0 {
			n += w + gap
		}
	}
	return n - gap
}

// dropOne hides the least important column. It returns false if all remaining columns are required.
func (t *table) dropOne(widths []int) bool {
	victim := -1
	for i, c := range t.columns {
		if c.drop > 0 && widths[i] > 0 && (victim < 0 || c.drop > t.columns[victim].drop) {
			victim = i
		}
	}
	if victim < 0 {
		return false
	}
	widths[victim] = 0
	return true
}

func (t *table) line(cells []string, widths []int) string {
	var shown []string
	for i, c := range t.columns {
		if widths[i] == 0 {
			continue
		}
		text := truncate(cells[i], widths[i])
		if c.words {
			text = shorten(cells[i], widths[i])
		}
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
		if c.right {
			shown = append(shown, pad+text)
		} else {
			shown = append(shown, text+pad)
		}
	}
	return strings.TrimRight(strings.Join(shown, strings.Repeat(" ", gap)), " ")
}

// truncate shortens a text to the given number of characters. It removes characters from the middle, because names
// often differ only at their end.
func truncate(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	const dots = ".."
	tail := (width - len(dots)) / 2
	return string(runes[:width-len(dots)-tail]) + dots + string(runes[len(runes)-tail:])
}

// wrap breaks a text into lines of at most width characters. It breaks only between words, so a longer word is a line
// of its own.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, cmp.Or(line, ""))
}
