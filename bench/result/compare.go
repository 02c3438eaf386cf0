package result

import (
	"fmt"
	"time"
)

// Comparison lists what has changed since an older report of the same kind. A difference within the scatter of the
// rounds is not a change.
type Comparison struct {
	Started time.Time `json:"started"` // time at which the older report was started
	Version string    `json:"version"`
	Warning string    `json:"warning,omitempty"` // reason why the two reports can be compared only approximately
	Changes []Change  `json:"changes,omitempty"`
	Same    int       `json:"same"` // number of metrics without a change
}

// Change is one metric that became worse or better.
type Change struct {
	Table  string `json:"table"`
	Row    string `json:"row"`
	Column string `json:"column"`
	Worse  bool   `json:"worse"`
	Old    string `json:"old"`
	New    string `json:"new"`
	// Factor is new / old. It is 0 if the new report lacks the metric, or if a target is no longer met.
	Factor float64 `json:"factor,omitempty"`
	key    string  // key of the table row
}

// A metric has changed if its ranges over the rounds do not overlap, and its medians differ by more than this
// fraction. With fewer than roundsKnown rounds, the range is not known well enough, and the larger fraction
// changeMinRough applies.
const (
	changeMin      = 0.05
	changeMinRough = 0.25
	roundsKnown    = 3
)

// Compare compares the report with an older one, and stores the differences in r.
func (r *Report) Compare(old *Report) error {
	if old.Kind != r.Kind {
		return fmt.Errorf("a report of %q cannot be compared with one of %q", r.Kind, old.Kind)
	}
	c := &Comparison{Started: old.Started, Version: old.Version}
	a, b := r.Machine, old.Machine
	if a.CPU != b.CPU || a.CPUs != b.CPUs || a.MemoryBytes != b.MemoryBytes || a.Kernel != b.Kernel ||
		a.FileSystem != b.FileSystem {
		c.Warning = "The older report is of another machine (" + b.words() + "): only ratios compare."
	} else if fmt.Sprint(r.Settings) != fmt.Sprint(old.Settings) {
		c.Warning = "The older report was measured with other settings."
	}
	for i := range old.Tables {
		before := &old.Tables[i]
		now := r.Table(before.ID)
		if now == nil {
			continue // this run did not measure the table
		}
		rows := make(map[string]*Row, len(now.Rows))
		for j := range now.Rows {
			rows[now.Rows[j].key()] = &now.Rows[j]
		}
		for j := range before.Rows {
			if row := rows[before.Rows[j].key()]; row != nil {
				c.compareRow(now, &before.Rows[j], row)
			}
		}
	}
	r.Comparison = c
	return nil
}

func (c *Comparison) compareRow(t *Table, before, now *Row) {
	if before.Missing != "" {
		return
	}
	if now.Missing != "" {
		c.Changes = append(c.Changes, Change{Table: t.ID, Row: now.Name(), key: now.key(), Worse: true, Old: "measured",
			New: "missing: " + now.Missing})
		return
	}
	for i := range t.Columns {
		col := &t.Columns[i]
		was, hadIt := before.Cells[col.Key]
		is, hasIt := now.Cells[col.Key]
		if !hadIt || !hasIt {
			continue
		}
		change := Change{Table: t.ID, Row: now.Name(), Column: col.Key, Old: col.show(was), New: col.show(is), key: now.key()}
		switch {
		case col.Key == keyVerdict && was.Text != is.Text:
			change.Worse = is.Text == Missed
			c.Changes = append(c.Changes, change)
		case col.Better == "" || col.Key == keyVerdict:
		default:
			worse, changed := hasChanged(was, is, col.Better)
			if !changed {
				c.Same++
				continue
			}
			change.Worse = worse
			if was.Median != 0 {
				change.Factor = is.Median / was.Median
			}
			c.Changes = append(c.Changes, change)
		}
	}
}

// hasChanged reports whether a metric has changed by more than its scatter, and whether the change is for the worse.
func hasChanged(was, is Value, better string) (worse, changed bool) {
	least := changeMin
	if was.Rounds < roundsKnown || is.Rounds < roundsKnown {
		least = changeMinRough
	}
	room := least * max(was.Median, -was.Median)
	switch {
	case is.Min > was.Max && is.Median > was.Median+room:
		return better == Lower, true
	case is.Max < was.Min && is.Median < was.Median-room:
		return better == Higher, true
	}
	return false, false
}

// worseCount returns the number of metrics that became worse.
func (c *Comparison) worseCount() (n int) {
	for i := range c.Changes {
		if c.Changes[i].Worse {
			n++
		}
	}
	return n
}

// change returns a table cell's change, or nil if there is none.
func (c *Comparison) change(t *Table, row *Row, column string) *Change {
	if c == nil {
		return nil
	}
	for i := range c.Changes {
		if ch := &c.Changes[i]; ch.Table == t.ID && ch.Row == row.Name() && (ch.key == "" || ch.key == row.key()) &&
			ch.Column == column {
			return ch
		}
	}
	return nil
}

// Words describes the change, for example as "1.42 x of 3.1 ms, worse".
func (c *Change) Words() string {
	if c.Factor == 0 {
		return "was " + c.Old + ", " + c.verdict()
	}
	return digits(c.Factor) + " x of " + c.Old + ", " + c.verdict()
}

// verdict returns "worse" or "better".
func (c *Change) verdict() string {
	if c.Worse {
		return "worse"
	}
	return "better"
}

// Words summarizes the comparison in one sentence.
func (c *Comparison) Words() string {
	worse := c.worseCount()
	return fmt.Sprintf("Against the report of %s (%s): worse %d, better %d, the same within their spread %d.",
		c.Started.UTC().Format(time.DateTime), c.Version, worse, len(c.Changes)-worse, c.Same)
}
