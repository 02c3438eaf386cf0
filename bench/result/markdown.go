package result

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// WriteMarkdown writes the report as tables. If the argument plots is not empty, it is the folder of the plots that the
// report links to.
func (r *Report) WriteMarkdown(w io.Writer, plots string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n", r.title())
	fmt.Fprintf(&b, "%s to %s, version %s. %s.\n", r.Started.UTC().Format(time.DateTime), r.Ended.UTC().
		Format(time.DateTime), r.Version, r.Machine.words())
	fmt.Fprintf(&b, "\n%s\n", r.summary())
	if len(r.Settings) > 0 {
		b.WriteString("\n| setting | |\n|---|---|\n")
		for _, s := range r.Settings {
			fmt.Fprintf(&b, "| %s | %s |\n", cellText(s.Name), cellText(s.Value))
		}
	}
	r.markdownComparison(&b)
	for i := range r.Tables {
		t := &r.Tables[i]
		fmt.Fprintf(&b, "\n## %s\n", t.Title)
		if t.About != "" {
			fmt.Fprintf(&b, "\n%s\n", t.About)
		}
		t.markdown(&b, r.Comparison)
		for j := range t.Plots {
			if p := &t.Plots[j]; plots != "" {
				fmt.Fprintf(&b, "\n![%s](%s/%s.svg)\n", p.Title, plots, p.ID)
			}
		}
	}
	if len(r.Notes) > 0 {
		b.WriteString("\n## Notes\n\n")
		for _, n := range r.Notes {
			fmt.Fprintf(&b, "- %s\n", n)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (r *Report) title() string {
	if r.Title != "" {
		return r.Title
	}
	return "sheaf-bench " + r.Kind
}

func (r *Report) markdownComparison(b *bytes.Buffer) {
	c := r.Comparison
	if c == nil {
		return
	}
	fmt.Fprintf(b, "\n## Compared\n\n%s\n", c.Words())
	if c.Warning != "" {
		fmt.Fprintf(b, "\n**%s**\n", c.Warning)
	}
	if len(c.Changes) == 0 {
		return
	}
	b.WriteString("\n| table | row | figure | was | is | |\n|---|---|---|---|---|---|\n")
	for i := range c.Changes {
		ch := &c.Changes[i]
		verdict := "better"
		if ch.Worse {
			verdict = "**worse**"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", cellText(ch.Table), cellText(ch.Row), cellText(ch.Column),
			cellText(ch.Old), cellText(ch.New), verdict)
	}
}

// labelNames returns the names of the labels in all rows, in the order of their first use.
func (t *Table) labelNames() []string {
	var names []string
	for i := range t.Rows {
		for _, l := range t.Rows[i].Labels {
			if !slices.Contains(names, l.Name) {
				names = append(names, l.Name)
			}
		}
	}
	return names
}

func (t *Table) markdown(b *bytes.Buffer, c *Comparison) {
	names := t.labelNames()
	heads := slices.Clone(names)
	for i := range t.Columns {
		heads = append(heads, t.Columns[i].Title)
	}
	if len(t.Rows) == 0 {
		return
	}
	b.WriteByte('\n')
	line(b, heads)
	rule := make([]string, len(heads))
	for i := range rule {
		if rule[i] = "---"; i >= len(names) && t.numeric(t.Columns[i-len(names)].Key) {
			rule[i] = "---:"
		}
	}
	line(b, rule)
	for i := range t.Rows {
		row := &t.Rows[i]
		cells := make([]string, 0, len(heads))
		for _, n := range names {
			cells = append(cells, row.Label(n))
		}
		for j := range t.Columns {
			cells = append(cells, t.markdownCell(row, &t.Columns[j], c))
		}
		if row.Missing != "" && len(t.Columns) > 0 {
			cells[len(names)] = "— " + row.Missing
		}
		line(b, cells)
	}
}

func (t *Table) markdownCell(row *Row, col *Column, c *Comparison) string {
	v, ok := row.Cells[col.Key]
	if !ok || row.Missing != "" && v.Text == "" {
		return ""
	}
	s := col.show(v)
	if col.Key == keyRatio || v.Text == Missed {
		s = "**" + s + "**"
	}
	if ch := c.change(t, row, col.Key); ch != nil {
		s += " (" + ch.Words() + ")"
	}
	return s
}

// numeric reports whether a column holds numbers, which are aligned to the right.
func (t *Table) numeric(key string) bool {
	if key == keyVerdict || key == keyNote {
		return false
	}
	for i := range t.Rows {
		if v, ok := t.Rows[i].Cells[key]; ok && v.Rounds > 0 {
			return true
		}
	}
	return key == keyTarget
}

func line(b *bytes.Buffer, cells []string) {
	for _, c := range cells {
		b.WriteString("| " + cellText(c) + " ")
	}
	b.WriteString("|\n")
}

// cellText escapes a string so that it stays within its table cell.
func cellText(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "\r", "").Replace(s)
}
