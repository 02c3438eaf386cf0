package rounds

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Set holds the results of all cells so far. Set is not safe for concurrent use.
type Set struct {
	Schema   string           `json:"schema"`
	Settings string           `json:"settings"` // only a run with the same settings can resume this one
	Cells    map[string]*Kept `json:"cells"`    // keyed by Cell.Key

	file string // file to which the set is written after each measurement; empty if it is not stored
}

// Kept holds the results of one cell.
type Kept struct {
	Rounds  int                       `json:"rounds"`
	Values  map[string][]float64      `json:"values,omitempty"`
	Series  map[string][][][2]float64 `json:"series,omitempty"`
	Text    map[string]string         `json:"text,omitempty"`
	Missing string                    `json:"missing,omitempty"` // reason why there is no result
}

// New returns an empty set that is not stored in a file.
func New() *Set { return &Set{Cells: map[string]*Kept{}} }

// Open returns a set that is written to a file after each measurement. If the file name is empty, the set is not
// stored. With resume, the set begins with the results in the file, if an earlier run stored them there with the same
// settings. Without resume, the first measurement overwrites the file.
func Open(file, schema, settings string, resume bool, say func(string, ...any)) (*Set, error) {
	s := &Set{Schema: schema, Settings: settings, Cells: map[string]*Kept{}, file: file}
	if file == "" {
		return s, nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		if resume {
			say("%s is not there: the run begins anew", file)
		}
		return s, nil
	}
	if err != nil || !resume {
		return s, err
	}
	var kept Set
	if err := json.Unmarshal(content, &kept); err != nil {
		return nil, fmt.Errorf("%s holds no figures of an earlier run: %w; remove it, or run without --resume", file, err)
	}
	if kept.Schema != schema || kept.Settings != settings {
		return nil, fmt.Errorf("%s is of a run with other settings (%s; now %s): run with the same, or without --resume",
			file, kept.Settings, settings)
	}
	for key, c := range kept.Cells {
		if c != nil && c.Rounds > 0 {
			s.Cells[key] = c
		}
	}
	return s, nil
}

// save replaces the stored set.
func (s *Set) save() error {
	if s.file == "" {
		return nil
	}
	err := vfs.ReplaceFile(s.file, func(w io.Writer) error { return json.NewEncoder(w).Encode(s) })
	if err != nil {
		return fmt.Errorf("keeping the figures so far: %w", err)
	}
	return nil
}

// keep returns the stored results of a cell, which the caller may change.
func (s *Set) keep(key string) *Kept {
	if s.Cells[key] == nil {
		s.Cells[key] = &Kept{}
	}
	return s.Cells[key]
}

// Miss records why a cell has no result. The cell is then not measured.
func (s *Set) Miss(key, why string) { s.keep(key).Missing = why }

func (s *Set) rounds(key string) int {
	if kept := s.Cells[key]; kept != nil {
		return kept.Rounds
	}
	return 0
}

// Of returns a cell's values of a metric, by round, or nil if there are none.
func (s *Set) Of(key, figure string) []float64 {
	if kept := s.Cells[key]; kept != nil && kept.Missing == "" {
		return kept.Values[figure]
	}
	return nil
}

// Rate returns the values, by round, of a cell that One() has created.
func (s *Set) Rate(key string) []float64 { return s.Of(key, Rate) }

// Missing returns the reason why a cell has no result, or an empty string if the cell was measured.
func (s *Set) Missing(key string) string {
	if kept := s.Cells[key]; kept != nil {
		return kept.Missing
	}
	return ""
}

// Best returns the index of the cell that has the best median of a metric, together with that cell's values. If less
// is true, the smallest median is the best. If no cell has the metric, the index is -1.
func (s *Set) Best(keys []string, figure string, less bool) (at int, rounds []float64) {
	at = -1
	for i, key := range keys {
		v := s.Of(key, figure)
		if len(v) == 0 {
			continue
		}
		is, was := result.Of(v...).Median, result.Of(rounds...).Median
		if at < 0 || less && is < was || !less && is > was {
			at, rounds = i, v
		}
	}
	return at, rounds
}

// Row returns the row of a cell in a report.
func (s *Set) Row(key string, labels []result.Label) result.Row {
	row := result.Row{Labels: labels, Missing: s.Missing(key), Cells: map[string]result.Value{}}
	if kept := s.Cells[key]; kept != nil && kept.Missing == "" {
		for figure, rounds := range kept.Values {
			row.Cells[figure] = result.Of(rounds...)
		}
		for name, text := range kept.Text {
			row.Cells[name] = result.Words("%s", text)
		}
	}
	return row
}
