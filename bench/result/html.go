package result

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed report.html
var pageText string

var page = template.Must(template.New("report").Parse(pageText))

// writeHTML writes a self-contained page, which loads no script, picture or font from another place.
func (r *Report) writeHTML(w io.Writer) error {
	if err := r.Check(); err != nil {
		return fmt.Errorf("benchmark report: %w", err)
	}
	view := pageView{
		Title: r.title(), Summary: r.summary(), Version: r.Version, Machine: r.Machine.words(), Settings: r.Settings,
		Notes: r.Notes, Comparison: r.Comparison,
		When: r.Started.UTC().Format(time.DateTime) + " UTC, " + r.Ended.Sub(r.Started).Round(time.Second).String(),
	}
	for i := range r.Tables {
		view.Tables = append(view.Tables, r.Tables[i].view(r.Comparison))
	}
	var b bytes.Buffer
	if err := page.Execute(&b, view); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// pageView is the data from which the page's template creates the page.
type pageView struct {
	Title, Summary, Version, Machine, When string
	Settings                               []Label
	Notes                                  []string
	Comparison                             *Comparison
	Tables                                 []tableView
}

type tableView struct {
	ID, Title, About string
	Heads            []headView
	Rows             []rowView
	Plots            []plotView
}

type headView struct {
	Text, Hint string
	Figure     bool
}

type rowView struct {
	Labels  []string
	Missing string
	Span    int
	Cells   []cellView
}

type cellView struct {
	Text, Range, Change string
	Class               string
}

type plotView struct {
	ID, Title    string
	Wide, Narrow template.HTML
}

func (t *Table) view(c *Comparison) tableView {
	v := tableView{ID: t.ID, Title: t.Title, About: t.About}
	names := t.labelNames()
	for _, n := range names {
		v.Heads = append(v.Heads, headView{Text: n})
	}
	for i := range t.Columns {
		col := &t.Columns[i]
		hint := map[string]string{Lower: "less is better", Higher: "more is better"}[col.Better]
		v.Heads = append(v.Heads, headView{Text: col.Title, Hint: hint, Figure: t.numeric(col.Key)})
	}
	for i := range t.Rows {
		row := &t.Rows[i]
		rv := rowView{Missing: row.Missing, Span: max(1, len(t.Columns))}
		for _, n := range names {
			rv.Labels = append(rv.Labels, row.Label(n))
		}
		for j := range t.Columns {
			rv.Cells = append(rv.Cells, t.cell(row, &t.Columns[j], c))
		}
		v.Rows = append(v.Rows, rv)
	}
	for i := range t.Plots {
		p := &t.Plots[i]
		w, n := wide, narrow
		w.untitled, n.untitled = true, true
		// This package creates the SVG and escapes the text in it.
		v.Plots = append(v.Plots, plotView{ID: p.ID, Title: p.Title, Wide: template.HTML(p.svg(w, "wide")),
			Narrow: template.HTML(p.svg(n, "narrow"))})
	}
	return v
}

func (t *Table) cell(row *Row, col *Column, c *Comparison) cellView {
	v, ok := row.Cells[col.Key]
	if !ok {
		return cellView{}
	}
	cell := cellView{Text: col.show(v), Range: col.showRange(v)}
	if t.numeric(col.Key) {
		cell.Class = "n"
	}
	switch col.Key {
	case keyVerdict:
		cell.Class = map[string]string{Met: Met, Missed: Missed}[v.Text]
	case keyNote:
		cell.Class = keyNote
	case keyRatio:
		cell.Class += " ratio"
	}
	if ch := c.change(t, row, col.Key); ch != nil {
		cell.Change = ch.Words()
		cell.Class += map[bool]string{true: " worse", false: " better"}[ch.Worse]
	}
	return cell
}
