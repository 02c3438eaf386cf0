package layouts

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
)

// state is what was measured so far, as it is kept in a file.
type state struct {
	Schema   string                `json:"schema"`
	Settings string                `json:"settings"` // a run with others does not go on with it
	Cells    map[string]*cellState `json:"cells"`
}

// cellState is what the rounds of one measurement gave.
type cellState struct {
	Rounds  int                       `json:"rounds"`
	Values  map[string][]float64      `json:"values,omitempty"`
	Series  map[string][][][2]float64 `json:"series,omitempty"`
	Text    map[string]string         `json:"text,omitempty"`
	Missing string                    `json:"missing,omitempty"`
}

const stateSchema = "sheaf.dev/bench/layouts-state/v1"

func (c *cellState) add(m *figures) {
	if c.Values == nil {
		c.Values, c.Series, c.Text = map[string][]float64{}, map[string][][][2]float64{}, map[string]string{}
	}
	for key, v := range m.values {
		c.Values[key] = append(c.Values[key], v)
	}
	for key, points := range m.series {
		c.Series[key] = append(c.Series[key], points)
	}
	maps.Copy(c.Text, m.text)
}

// cell gives what is kept of a measurement.
func (s *state) cell(c *cell) *cellState {
	kept := s.Cells[c.key()]
	if kept == nil {
		kept = &cellState{}
		s.Cells[c.key()] = kept
	}
	return kept
}

func (s *state) rounds(c *cell) int {
	if kept := s.Cells[c.key()]; kept != nil {
		return kept.Rounds
	}
	return 0
}

// settings that figures can only be put together under.
func (r *run) settings() string {
	where := "loop"
	switch {
	case r.opts.Device != "":
		where = "device " + r.opts.Device
	case r.opts.Path != "":
		where = "path " + r.opts.Path
	}
	return strings.Join([]string{"scale " + r.opts.Scale, where, "version " + r.opts.Version}, ", ")
}

// loadState goes on with what an earlier run has kept. Without Resume, figures that are kept are not written over.
func (r *run) loadState() error {
	r.state = state{Schema: stateSchema, Settings: r.settings(), Cells: map[string]*cellState{}}
	if r.opts.State == "" {
		return nil
	}
	content, err := os.ReadFile(r.opts.State)
	if errors.Is(err, os.ErrNotExist) {
		if r.opts.Resume {
			r.opts.Say("%s is not there: the run begins anew", r.opts.State)
		}
		return nil
	}
	if err != nil || !r.opts.Resume {
		return err // it is of an earlier run that nobody wants to go on with
	}
	var kept state
	if err := json.Unmarshal(content, &kept); err != nil {
		return fmt.Errorf("%s holds no figures of an earlier run: %w; remove it, or run without --resume", r.opts.State, err)
	}
	if kept.Schema != stateSchema || kept.Settings != r.settings() {
		return fmt.Errorf("%s is of a run with other settings (%s; now %s): run with the same, or without --resume", r.opts.State, kept.Settings, r.settings())
	}
	for key, c := range kept.Cells {
		if c != nil && c.Rounds > 0 {
			r.state.Cells[key] = c
		}
	}
	return nil
}

// saveState replaces the file.
func (r *run) saveState() error {
	if r.opts.State == "" {
		return nil
	}
	content, err := json.Marshal(&r.state)
	if err != nil {
		return fmt.Errorf("keeping the figures so far: %w", err)
	}
	aside := r.opts.State + ".new"
	if err := os.WriteFile(aside, content, 0o644); err != nil {
		return fmt.Errorf("keeping the figures so far: %w", err)
	}
	return os.Rename(aside, r.opts.State)
}
