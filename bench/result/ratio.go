package result

import "fmt"

// Ratio compares a metric of Sheaf with a limit. The limit is the best peer's value, or the machine's limit.
type Ratio struct {
	Labels []Label
	Unit   string
	Ours   []float64 // one value for each round
	Limit  []float64 // values from the same rounds; if it is empty, the values in Ours are themselves compared with Target
	// Faster means that the fields Ours and Limit are times or sizes. The ratio is then Limit / Ours, so that a greater
	// ratio is better.
	Faster bool
	Target float64 // 0 if the ratio is only reported, without a target
	AtMost bool    // if true, Target is the maximum of the ratio; otherwise it is the minimum
	Missed string  // reason why nothing was measured; the table then has a row without values
	Note   string
}

// WithNote returns the ratio with a note.
func (r Ratio) WithNote(note string) Ratio {
	r.Note = note
	return r
}

// These are the keys of the columns in a table of ratios.
const (
	keyOurs    = "ours"
	keyLimit   = "limit"
	keyRatio   = "ratio"
	keyTarget  = "target"
	keyVerdict = "verdict"
	keySpread  = "spread"
	keyNote    = "note"
)

// These verdicts say whether a ratio has met its target.
const (
	Met    = "met"
	Missed = "missed"
)

// Ratios creates a table of comparisons. Each row has Sheaf's value, the limit, the ratio between them, the target,
// the verdict, and the scatter of the ratio over the rounds.
func Ratios(id, title, about string, ratios []Ratio) Table {
	t := Table{ID: id, Title: title, About: about, Columns: []Column{
		{Key: keyOurs, Title: "ours"},
		{Key: keyLimit, Title: "against"},
		{Key: keyRatio, Title: "ratio", Unit: "x", Better: Higher},
		{Key: keyTarget, Title: "target"},
		{Key: keyVerdict, Title: "verdict"},
		{Key: keySpread, Title: "spread", Unit: "%"},
		{Key: keyNote, Title: "note"},
	}}
	notes, atMost := false, 0
	for _, r := range ratios {
		notes = notes || r.Note != ""
		if r.AtMost {
			atMost++
		}
		t.Rows = append(t.Rows, r.row())
	}
	if !notes {
		t.Columns = t.Columns[:len(t.Columns)-1]
	}
	switch atMost {
	case 0:
	case len(ratios):
		t.Columns[2].Better = Lower
	default:
		// In some rows a lower ratio is better and in others a higher one, so only the verdict shows which.
		t.Columns[2].Better = ""
	}
	return t
}

// row creates the table row for a ratio. If both sides have the same rounds, the scatter is computed from each round's
// ratio.
func (r *Ratio) row() Row {
	row := Row{Labels: r.Labels, Missing: r.Missed, Cells: map[string]Value{}}
	if r.Note != "" {
		row.Cells[keyNote] = Words("%s", r.Note)
	}
	if r.Missed != "" {
		return row
	}
	ours := Of(r.Ours...)
	row.Cells[keyOurs] = withText(ours, r.Unit)
	ratio := ours
	if len(r.Limit) > 0 {
		limit := Of(r.Limit...)
		row.Cells[keyLimit] = withText(limit, r.Unit)
		ratio = r.ratio(ours, limit)
		row.Cells[keyRatio] = ratio
	}
	if ratio.Rounds > 1 { // a single round has no spread
		row.Cells[keySpread] = Value{Median: 100 * ratio.spread(), Rounds: ratio.Rounds}
	}
	if r.Target == 0 {
		return row
	}
	sign, met := "≥", ratio.Median >= r.Target
	if r.AtMost {
		sign, met = "≤", ratio.Median <= r.Target
	}
	unit := "x"
	if len(r.Limit) == 0 {
		unit = r.Unit
	}
	row.Cells[keyTarget] = Value{Median: r.Target, Text: sign + " " + Format(r.Target, unit)}
	row.Cells[keyVerdict] = Words("%s", map[bool]string{true: Met, false: Missed}[met])
	return row
}

func (r *Ratio) ratio(ours, limit Value) Value {
	divide := func(o, l float64) float64 {
		if r.Faster {
			o, l = l, o
		}
		if l == 0 {
			return 0
		}
		return o / l
	}
	if len(r.Ours) != len(r.Limit) {
		m := divide(ours.Median, limit.Median)
		return Value{Median: m, Min: divide(ours.Min, limit.Max), Max: divide(ours.Max, limit.Min),
			Rounds: min(len(r.Ours), len(r.Limit))}.sorted()
	}
	each := make([]float64, 0, len(r.Ours))
	for i := range r.Ours {
		each = append(each, divide(r.Ours[i], r.Limit[i]))
	}
	v := Of(each...)
	v.Median = divide(ours.Median, limit.Median)
	v.Min, v.Max = min(v.Min, v.Median), max(v.Max, v.Median)
	return v
}

// sorted swaps Min and Max if Min is greater. This happens in ratios of times, because the minimum of Ours gives the
// maximum of the ratio.
func (v Value) sorted() Value {
	v.Min, v.Max = min(v.Min, v.Max), max(v.Min, v.Max)
	return v
}

func withText(v Value, unit string) Value {
	v.Text = Format(v.Median, unit)
	return v
}

// verdicts counts the met and the missed targets in all tables.
func (r *Report) verdicts() (met, missed int) {
	for i := range r.Tables {
		for _, row := range r.Tables[i].Rows {
			switch row.Cells[keyVerdict].Text {
			case Met:
				met++
			case Missed:
				missed++
			}
		}
	}
	return met, missed
}

// summary returns one sentence about the targets.
func (r *Report) summary() string {
	met, missed := r.verdicts()
	if met+missed == 0 {
		return "No row names a target."
	}
	return fmt.Sprintf("%d of %d targets met.", met, met+missed)
}
