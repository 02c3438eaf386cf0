// Package result is the common format of benchmark results: a report with tables and plots. A report is written as
// JSON, Markdown, pictures and a self-contained page, and can be compared with an older one.
package result

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Schema identifies the version of the JSON format. ReadJSON accepts no other version.
const Schema = "sheaf.dev/bench/v1"

// These constants say whether a lower or a higher value of a metric is better.
const (
	Lower  = "lower"
	Higher = "higher"
)

// Report is the result of one run.
type Report struct {
	Schema     string      `json:"schema"`
	Kind       string      `json:"kind"` // name of the benchmark, such as layouts, peers, load or rpc
	Title      string      `json:"title,omitempty"`
	Started    time.Time   `json:"started"`
	Ended      time.Time   `json:"ended"`
	Version    string      `json:"version"` // version of the program
	Machine    Machine     `json:"machine"`
	Settings   []Label     `json:"settings,omitempty"`
	Tables     []Table     `json:"tables"`
	Notes      []string    `json:"notes,omitempty"`
	Comparison *Comparison `json:"comparison,omitempty"`
}

// Label is a named string. The order of labels in a list is significant.
type Label struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Table is a set of rows with the same columns, and the plots that show them.
type Table struct {
	ID      string   `json:"id"` // lower-case letters, digits and '-'; unique in the report
	Title   string   `json:"title"`
	About   string   `json:"about,omitempty"`
	Columns []Column `json:"columns"`
	Rows    []Row    `json:"rows"`
	Plots   []Plot   `json:"plots,omitempty"`
}

// Column describes one metric in each row.
type Column struct {
	Key    string `json:"key"`
	Title  string `json:"title"`
	Unit   string `json:"unit,omitempty"`   // the unit: B, B/s, s, ns, /s, x (a ratio), % or a word
	Better string `json:"better,omitempty"` // Lower, Higher, or empty if neither is better
	// Log makes plots use a logarithmic scale, because the values span several orders of magnitude.
	Log bool `json:"log,omitempty"`
}

// FindColumn returns the column with the given key. If there is none, it returns a column without a unit whose title is
// the key.
func FindColumn(columns []Column, key string) Column {
	for i := range columns {
		if columns[i].Key == key {
			return columns[i]
		}
	}
	return Column{Key: key, Title: key}
}

// Row holds the results of one measured case.
type Row struct {
	Labels  []Label          `json:"labels"`            // labels that identify the row, such as fs, layout and case
	Missing string           `json:"missing,omitempty"` // reason why there is no value
	Cells   map[string]Value `json:"cells,omitempty"`   // keyed by Column.Key
}

// Value is the value of a metric, with a median and a range. If Text is set, it is shown instead.
type Value struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Rounds int     `json:"rounds"`
	Text   string  `json:"text,omitempty"`
}

// Plot is a picture of several series on the same axes.
type Plot struct {
	ID     string   `json:"id"` // lower-case letters, digits and '-'; unique in the report, because it names a file
	Title  string   `json:"title"`
	XLabel string   `json:"x_label"`
	YLabel string   `json:"y_label"`
	XUnit  string   `json:"x_unit,omitempty"` // unit at the ticks, as in Column.Unit; empty for plain numbers
	YUnit  string   `json:"y_unit,omitempty"`
	LogX   bool     `json:"log_x,omitempty"`
	LogY   bool     `json:"log_y,omitempty"`
	Series []Series `json:"series"`
}

// Series is a named line.
type Series struct {
	Name   string       `json:"name"`
	Points [][2]float64 `json:"points"` // pairs of x and y
}

// Of creates a value from the values of the rounds.
func Of(rounds ...float64) Value {
	if len(rounds) == 0 {
		return Value{}
	}
	s := slices.Sorted(slices.Values(rounds))
	v := Value{Median: s[len(s)/2], Min: s[0], Max: s[len(s)-1], Rounds: len(s)}
	if n := len(s); n%2 == 0 {
		v.Median = (s[n/2-1] + s[n/2]) / 2
	}
	return v
}

// Words creates a value that consists of text.
func Words(format string, a ...any) Value { return Value{Text: fmt.Sprintf(format, a...)} }

// spread returns (largest - smallest) / median.
func (v Value) spread() float64 {
	if v.Median == 0 {
		return 0
	}
	return (v.Max - v.Min) / math.Abs(v.Median)
}

// Labels creates labels from its arguments, which are a name, its value, the next name, its value, and so on.
func Labels(pairs ...string) []Label {
	labels := make([]Label, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		labels = append(labels, Label{pairs[i], pairs[i+1]})
	}
	return labels
}

// Label returns the value of a label, or "" if the row has no label with that name.
func (r Row) Label(name string) string {
	for _, l := range r.Labels {
		if l.Name == name {
			return l.Value
		}
	}
	return ""
}

// Name returns the values of the labels in order.
func (r Row) Name() string {
	values := make([]string, 0, len(r.Labels))
	for _, l := range r.Labels {
		values = append(values, l.Value)
	}
	return strings.Join(values, " · ")
}

// key identifies a row in its table.
func (r Row) key() string {
	var b strings.Builder
	for _, l := range r.Labels {
		fmt.Fprintf(&b, "%q=%q ", l.Name, l.Value)
	}
	return b.String()
}

// Table returns the table with an id, or nil.
func (r *Report) Table(id string) *Table {
	for i := range r.Tables {
		if r.Tables[i].ID == id {
			return &r.Tables[i]
		}
	}
	return nil
}

// idPattern restricts ids, because they become names of files and anchors.
var idPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// Check returns an error if the report is not valid. The error says what is wrong, and where.
func (r *Report) Check() error {
	if r.Schema != Schema {
		return fmt.Errorf("schema %q: this program reads %q only", r.Schema, Schema)
	}
	seen := map[string]bool{}
	for i := range r.Tables {
		t := &r.Tables[i]
		if !idPattern.MatchString(t.ID) || seen[t.ID] {
			return fmt.Errorf("table %d: id %q must be small letters, digits and '-', and no other table's or plot's", i, t.ID)
		}
		seen[t.ID] = true
		if err := t.check(); err != nil {
			return fmt.Errorf("table %s: %w", t.ID, err)
		}
		for j := range t.Plots {
			p := &t.Plots[j]
			if !idPattern.MatchString(p.ID) || seen[p.ID] {
				return fmt.Errorf("table %s: plot %d: id %q must be small letters, digits and '-', and no other table's or plot's",
					t.ID, j, p.ID)
			}
			seen[p.ID] = true
			if err := p.check(); err != nil {
				return fmt.Errorf("plot %s: %w", p.ID, err)
			}
		}
	}
	return nil
}

func (t *Table) check() error {
	keys := map[string]bool{}
	for _, c := range t.Columns {
		if c.Key == "" || keys[c.Key] {
			return fmt.Errorf("column %q: its key is empty or another one's", c.Key)
		}
		if c.Better != "" && c.Better != Lower && c.Better != Higher {
			return fmt.Errorf("column %s: better is %q, must be %q, %q or empty", c.Key, c.Better, Lower, Higher)
		}
		keys[c.Key] = true
	}
	rows := map[string]bool{}
	for i := range t.Rows {
		row := &t.Rows[i]
		if rows[row.key()] {
			return fmt.Errorf("row %s: is there twice", row.Name())
		}
		rows[row.key()] = true
		for key, v := range row.Cells {
			if !keys[key] {
				return fmt.Errorf("row %s: cell %q belongs to no column", row.Name(), key)
			}
			if !finite(v.Median) || !finite(v.Min) || !finite(v.Max) {
				return fmt.Errorf("row %s: cell %s is not a finite number", row.Name(), key)
			}
		}
	}
	return nil
}

func (p *Plot) check() error {
	for _, s := range p.Series {
		for _, at := range s.Points {
			if !finite(at[0]) || !finite(at[1]) {
				return fmt.Errorf("series %s: a point is not finite", s.Name)
			}
			if p.LogX && at[0] <= 0 || p.LogY && at[1] <= 0 {
				return fmt.Errorf("series %s: the point %v cannot stand on a log axis", s.Name, at)
			}
		}
	}
	return nil
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
