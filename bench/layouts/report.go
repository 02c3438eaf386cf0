package layouts

import (
	"fmt"
	"slices"
	"strings"

	"sheaf.dev/sheaf/bench/result"
)

// parts are the tables of the report, in order.
var parts = []struct {
	table int
	part  string
	id    string
	title string
	about string
}{
	{1, partSizes, "t1-sizes", "fill and read everything", "Fill: until the last call returns, when files and the composite file are in memory only (nothing was synced) and ours is on disk: each call returns after the sync of its commit, which takes 8 MiB or 8,192 records, while the callers bring the next ones. " +
		"Until all is on disk: files and the composite file with one syncfs at the end, the cheapest way that makes them as durable as ours; before it a power cut may take any of them. Raw write: the same bytes past the page cache, 1 MiB and four at a time, one sync at the end. " +
		"Cold read: until the data of every record is in memory; ours checks every CRC and builds its index, the composite file has neither."},
	{1, partSync, "t1-sync", "each record durable before the next, one writer", ""},
	{1, partSuperseded, "t1-superseded", "superseded versions", "Cold read of everything, where each newest version (without flags: each version) is gone over byte by byte, as a parser would. " +
		"Composite files have one reader, as where an entry begins is known only behind the one before; ours is scanned by as many workers as there are processors."},
	{2, "", "t2", "single records", "Random records of 1 KB, one caller. Cold figures begin after remount; ours includes its start from hints, and its deletes are durable."},
	{3, "", "t3", "the life of a file system", "Check: e2fsck, xfs_repair, btrfs check...; ours: what `sheaf verify` does, which also reads and checks every byte of the data. Iterate: name and size of each record. Remove: until it is on disk."},
	{4, "", "t4", "latency of creation number N", "Files are not synced. Ours: 64 callers at a time, durable by one commit for all of them, so each waits for the device."},
	{5, partDeep, "t5-deep", "tiny records", ""},
	{5, partLimit, "t5-limit", "a flat folder at its limit", "ext4 without large_dir, with index blocks of 1 KiB and names of 255 bytes, so that the limit comes after some ten thousands of names instead of ten millions."},
}

// report puts together what was measured.
func (r *run) report() *result.Report {
	out := &result.Report{Schema: result.Schema, Kind: "layouts", Title: "sheaf-bench layouts", Machine: result.ThisMachine(r.dir())}
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
			if t := r.table(p.table, p.part); len(t.Rows) > 0 {
				t.ID, t.About = p.id, p.about
				t.Title = fmt.Sprintf("%d. %s: %s", p.table, Tables[p.table-1], p.title)
				t.Plots = r.plots(p.table, p.part, p.id)
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

// dir is where bytes are in the end.
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

// table makes the rows of one part.
func (r *run) table(number int, part string) result.Table {
	var t result.Table
	seen := map[string]bool{}
	texts := false
	for i := range r.cells {
		c := &r.cells[i]
		kept := r.state.Cells[c.key()]
		if c.table != number || c.part != part || kept == nil {
			continue
		}
		row := result.Row{Labels: result.Labels("file system", c.fs.name, "records", c.variant, "layout", c.layout), Missing: kept.Missing, Cells: map[string]result.Value{}}
		for key, rounds := range kept.Values {
			if kept.Missing == "" {
				row.Cells[key], seen[key] = result.Of(rounds...), true
			}
		}
		for _, text := range kept.Text {
			row.Cells["text"], texts = result.Words("%s", text), true
		}
		t.Rows = append(t.Rows, row)
	}
	for _, f := range allFigures {
		if seen[f.key] {
			t.Columns = append(t.Columns, result.Column{Key: f.key, Title: f.title, Unit: f.unit, Better: f.better, Log: f.log})
		}
	}
	if texts {
		t.Columns = append(t.Columns, result.Column{Key: "text", Title: "what happens"})
	}
	if len(t.Rows) == 0 || part == partLimit {
		return t
	}
	for _, a := range r.absent {
		t.Rows = append(t.Rows, result.Row{Labels: result.Labels("file system", a.fs, "records", "", "layout", ""), Missing: a.why})
	}
	return t
}

// plots of a part, one for each file system.
func (r *run) plots(number int, part, id string) []result.Plot {
	kinds := []struct {
		key, title, x, y string
		logX, logY       bool
	}{}
	switch {
	case part == partSizes:
		kinds = append(kinds, plotKind{"read", "cold read of everything", "bytes of a record", "MB/s", true, true}, plotKind{"rate", "fill", "bytes of a record", "records per second", true, true})
	case part == partSuperseded:
		kinds = append(kinds, plotKind{"load", "read and parse, cold", "% superseded", "seconds", false, true})
	case number == 2:
		kinds = append(kinds, plotKind{"get", "seek and read, cold", "records stored", "seconds", true, true}, plotKind{"create", "create", "records stored", "seconds", true, true})
	}
	var out []result.Plot
	for _, fs := range r.present {
		for _, k := range kinds {
			p := result.Plot{ID: strings.Join([]string{id, k.key, plotName(fs.name)}, "-"), Title: fs.name + ": " + k.title, XLabel: k.x, YLabel: k.y, LogX: k.logX, LogY: k.logY}
			p.Series = r.series(number, part, fs, k.key)
			if len(p.Series) > 0 && len(p.Series[0].Points) > 1 {
				out = append(out, p)
			}
		}
		if number == 4 {
			out = append(out, r.latencyPlots(fs, id)...)
		}
	}
	return out
}

// plotKind is what a plot shows.
type plotKind = struct {
	key, title, x, y string
	logX, logY       bool
}

func plotName(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(s))
}

// series are the medians of a figure over x, a line for each layout.
func (r *run) series(number int, part string, fs *fileSystem, key string) []result.Series {
	var out []result.Series
	for i := range r.cells {
		c := &r.cells[i]
		kept := r.state.Cells[c.key()]
		if c.table != number || c.part != part || c.fs != fs || kept == nil || kept.Missing != "" || len(kept.Values[key]) == 0 {
			continue
		}
		y := result.Of(kept.Values[key]...).Median
		if key == "read" {
			y = kept.bytes(c) / y / 1e6
		}
		at := slices.IndexFunc(out, func(s result.Series) bool { return s.Name == c.layout })
		if at < 0 {
			at, out = len(out), append(out, result.Series{Name: c.layout})
		}
		out[at].Points = append(out[at].Points, [2]float64{c.x, y})
	}
	return out
}

// bytes of data that the records of a measurement of table 1 have.
func (s *cellState) bytes(c *cell) float64 {
	fill, rate := s.Values["fill"], s.Values["rate"]
	return c.x * fill[0] * rate[0]
}

// latencyPlots are the percentiles over the number of the creation.
func (r *run) latencyPlots(fs *fileSystem, id string) []result.Plot {
	var out []result.Plot
	for _, key := range []string{"p50", "p99"} {
		p := result.Plot{ID: strings.Join([]string{id, key, plotName(fs.name)}, "-"), Title: fmt.Sprintf("%s: %s of each thousand creations", fs.name, key),
			XLabel: "number of the creation", YLabel: "seconds", LogY: true}
		for i := range r.cells {
			c := &r.cells[i]
			kept := r.state.Cells[c.key()]
			if c.table == 4 && c.fs == fs && kept != nil && len(kept.Series[key]) > 0 {
				p.Series = append(p.Series, result.Series{Name: c.layout, Points: medianSeries(kept.Series[key])})
			}
		}
		if len(p.Series) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// medianSeries takes the median of the rounds at each point.
func medianSeries(rounds [][][2]float64) [][2]float64 {
	out := make([][2]float64, 0, len(rounds[0]))
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
