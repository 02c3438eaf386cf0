package layouts

import (
	"fmt"
	"slices"
	"strings"

	"sheaf.dev/sheaf/bench/result"
)

// part is a table of the report.
type part struct {
	table            int
	part             string
	id, title, about string
	// plots are the plots for one file system. The ID of a plot is the key of the metric that it shows.
	plots []result.Plot
}

const numberLabel = "number of the creation"

// parts are the report's tables, in order.
var parts = []part{
	{table: 1, part: partSizes, id: "t1-sizes", title: "fill and read everything",
		about: "Fill: until the last call returns, when files and the composite file are in memory only (nothing was " +
			"synced) and ours is on disk: each call returns after the sync of its commit, which takes 8 MiB or " +
			"8,192 records, while the callers bring the next ones. Until all is on disk: files and the composite " +
			"file with one syncfs at the end, the cheapest way that makes them as durable as ours; before it a " +
			"power cut may take any of them. Raw write: the same bytes past the page cache, 1 MiB and four at a " +
			"time, one sync at the end. Cold read: until the data of every record is in memory; ours checks every " +
			"CRC and builds its index, the composite file has neither.",
		plots: []result.Plot{
			{
				ID: "read", Title: "cold read of everything", XLabel: "bytes of a record", YLabel: "MB/s",
				LogX: true, LogY: true,
			},
			{ID: "rate", Title: "fill", XLabel: "bytes of a record", YLabel: "records per second", LogX: true, LogY: true},
		}},
	{table: 1, part: partSync, id: "t1-sync", title: "each record durable before the next, one writer"},
	{table: 1, part: partSuperseded, id: "t1-superseded", title: "superseded versions",
		about: "Cold read of everything, where each newest version (without flags: each version) is gone over byte " +
			"by byte, as a parser would. Composite files have one reader, as where an entry begins is known only " +
			"behind the one before; ours is scanned by as many workers as there are processors.",
		plots: []result.Plot{
			{ID: "load", Title: "read and parse, cold", XLabel: "% superseded", YLabel: "seconds", LogY: true},
		}},
	{table: 2, id: "t2", title: "single records",
		about: "Random records of 1 KB, one caller. Cold figures begin after remount; ours includes its start from " +
			"hints, and its deletes are durable.",
		plots: []result.Plot{
			{ID: "get", Title: "seek and read, cold", XLabel: "records stored", YLabel: "seconds", LogX: true, LogY: true},
			{ID: "create", Title: "create", XLabel: "records stored", YLabel: "seconds", LogX: true, LogY: true},
		}},
	{table: 3, id: "t3", title: "the life of a file system",
		about: "Check: e2fsck, xfs_repair, btrfs check...; ours: what `sheaf verify` does, which also reads and " +
			"checks every byte of the data. Iterate: name and size of each record. Remove: until it is on disk."},
	{table: 4, id: "t4", title: "latency of creation number N",
		about: "Files are not synced. Ours: 64 callers at a time, durable by one commit for all of them, so each " +
			"waits for the device.",
		plots: []result.Plot{
			{ID: "p50", Title: "p50 of each thousand creations", XLabel: numberLabel, YLabel: "seconds", LogY: true},
			{ID: "p99", Title: "p99 of each thousand creations", XLabel: numberLabel, YLabel: "seconds", LogY: true},
		}},
	{table: 5, part: partDeep, id: "t5-deep", title: "tiny records"},
	{table: 5, part: partLimit, id: "t5-limit", title: "a flat folder at its limit",
		about: "ext4 without large_dir, with index blocks of 1 KiB and names of 255 bytes, so that the limit comes " +
			"after some ten thousands of names instead of ten millions."},
}

// report creates a report on all measurements so far.
func (r *run) report() *result.Report {
	out := &result.Report{Schema: result.Schema, Kind: "layouts", Title: "sheaf-bench layouts"}
	out.Machine = result.ThisMachine(r.dir())
	where := "interrupted before anything was measured"
	if r.place != nil {
		where = r.place.words()
	}
	out.Settings = result.Labels("scale", r.opts.Scale, "rounds", fmt.Sprint(r.opts.Rounds), "file systems on", where,
		"cold", r.coldWords(), "order", "the layouts of a row take turns; each round begins with another one")
	for _, fs := range r.present {
		if len(fs.mkfs) > 0 {
			out.Settings = append(out.Settings, result.Labels(fs.name, r.fileSystemWords(fs))...)
		}
	}
	out.Tables = append(out.Tables, r.ratios())
	for i := range parts {
		p := &parts[i]
		if slices.Contains(r.opts.Tables, p.table) {
			if t := r.table(p); len(t.Rows) > 0 {
				out.Tables = append(out.Tables, t)
			}
		}
	}
	out.Notes = r.notes
	for _, a := range r.absent {
		out.Notes = append(out.Notes, fmt.Sprintf("%s was not measured: %s.", a.fs, a.why))
	}
	return out
}

// dir returns the folder that is measured or, if there is none, the folder for the images of file systems.
func (r *run) dir() string {
	if r.opts.Path != "" {
		return r.opts.Path
	}
	return r.opts.Dir
}

func (r *run) coldWords() string {
	if p, ok := r.place.(*pathPlace); ok {
		if p.warm != "" {
			return p.warm
		}
		return "sync and drop_caches; nothing was mounted anew"
	}
	return "unmounted, drop_caches, mounted again"
}

func (r *run) fileSystemWords(fs *fileSystem) string {
	words := strings.Join(fs.mkfsCommand("DEVICE", 0), " ")
	if fs.inodes != "" {
		words = strings.Replace(words, fs.inodes+" 4096", fs.inodes+" FILES", 1)
	}
	options := []string{"noatime"}
	if fs.options != "" {
		options = append(options, fs.options)
	}
	return words + "; mounted with " + strings.Join(options, ",")
}

// cellsIn returns the measurements in one part of a table.
func (r *run) cellsIn(table int, part string) []*cell {
	var out []*cell
	for i := range r.cells {
		if c := &r.cells[i]; c.table == table && c.part == part {
			out = append(out, c)
		}
	}
	return out
}

// table creates the table for one part.
func (r *run) table(p *part) result.Table {
	t := result.Table{ID: p.id, About: p.about, Title: fmt.Sprintf("%d. %s: %s", p.table, Tables[p.table-1], p.title)}
	labels := func(fs, variant, layout string) []result.Label {
		return result.Labels("file system", fs, "records", variant, "layout", layout)
	}
	for _, c := range r.cellsIn(p.table, p.part) {
		if r.set.Cells[c.String()] != nil {
			t.Rows = append(t.Rows, r.set.Row(c.String(), labels(c.fs.name, c.variant, c.layout)))
		}
	}
	for _, f := range allFigures {
		if slices.ContainsFunc(t.Rows, func(row result.Row) bool { _, ok := row.Cells[f.Key]; return ok }) {
			t.Columns = append(t.Columns, f)
		}
	}
	if len(t.Rows) > 0 && p.part != partLimit {
		for _, a := range r.absent {
			t.Rows = append(t.Rows, result.Row{Labels: labels(a.fs, "", ""), Missing: a.why})
		}
	}
	for _, fs := range r.present {
		for _, plot := range p.plots {
			figure := plot.ID
			plot.ID = strings.Join([]string{p.id, figure, plotName(fs.name)}, "-")
			plot.Title = fs.name + ": " + plot.Title
			plot.Series = r.series(p, fs, figure)
			if len(plot.Series) > 0 && len(plot.Series[0].Points) > 1 {
				t.Plots = append(t.Plots, plot)
			}
		}
	}
	return t
}

func plotName(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(s))
}

// series returns one line for each layout. The line shows the medians of a metric, with one point for each x. If the
// rounds recorded a series of points for the metric, the line shows these points.
func (r *run) series(p *part, fs *fileSystem, figure string) []result.Series {
	var out []result.Series
	for _, c := range r.cellsIn(p.table, p.part) {
		if c.fs != fs || r.set.Missing(c.String()) != "" {
			continue
		}
		var points [][2]float64
		if kept := r.set.Cells[c.String()]; kept != nil {
			points = medianSeries(kept.Series[figure])
		}
		if v := r.set.Of(c.String(), figure); len(v) > 0 {
			y := result.Of(v...).Median
			if figure == "read" { // the metric is a time; the plot shows MB/s
				y = c.x * r.set.Of(c.String(), "fill")[0] * r.set.Of(c.String(), "rate")[0] / y / 1e6
			}
			points = [][2]float64{{c.x, y}}
		}
		if len(points) == 0 {
			continue
		}
		at := slices.IndexFunc(out, func(s result.Series) bool { return s.Name == c.layout })
		if at < 0 {
			at, out = len(out), append(out, result.Series{Name: c.layout})
		}
		out[at].Points = append(out[at].Points, points...)
	}
	return out
}

// medianSeries returns, for each point of the first round, the median over all rounds.
func medianSeries(rounds [][][2]float64) (out [][2]float64) {
	if len(rounds) == 0 {
		return nil
	}
	for i, p := range rounds[0] {
		var at []float64
		for _, round := range rounds {
			if i < len(round) {
				at = append(at, round[i][1])
			}
		}
		out = append(out, [2]float64{p[0], result.Of(at...).Median})
	}
	return out
}
