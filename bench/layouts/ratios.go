package layouts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sheaf.dev/sheaf/bench/result"
)

// target describes one comparison between Sheaf and other layouts, and the ratio that Sheaf should reach.
type target struct {
	what   string
	table  int
	part   string
	figure string // the metric that is compared
	faster bool   // the metric is a time, so the smaller value is the better one
	others func(c *cell) bool
	// least returns the minimum ratio that a measurement should reach. 0 means that the ratio is reported without a
	// target.
	least  func(c *cell) float64
	atMost bool
	// limit is the key of a metric of Sheaf itself. If it is set, Sheaf is compared with this metric, and not with other
	// layouts.
	limit string
	also  string // key of the metric in the other layouts; empty if it has the same key, figure
}

func is(layouts ...string) func(*cell) bool {
	return func(c *cell) bool {
		return slices.Contains(layouts, c.layout)
	}
}

// isFiles reports whether the layout stores one file per record.
func isFiles(c *cell) bool {
	return c.layout != oursTitle && !strings.HasPrefix(c.layout, "composite")
}

func always(v float64) func(*cell) float64 { return func(*cell) float64 { return v } }

// coldTarget returns the target for reading all records with cold caches. It depends on the file system and the
// record size.
func coldTarget(c *cell) float64 {
	switch {
	case c.x == 1<<10 && c.fs.name != "ext2":
		return 40
	case c.x == 20<<10 && c.fs.name == "btrfs":
		return 6
	case c.x == 20<<10:
		return 10
	}
	return 0
}

// superseded50 returns a function for target.least. For measurements with 50 % superseded versions, the function
// returns the given ratio. For all others it returns 1, so Sheaf must only not be slower.
func superseded50(least float64) func(*cell) float64 {
	return func(c *cell) float64 {
		if c.x == 50 {
			return least
		}
		return 1
	}
}

// targets lists the comparisons in the report. Both sides of a comparison are measured in the same run.
var targets = []target{
	{what: "cold read of everything / best files, one reader",
		table: 1, part: partSizes, figure: "read", faster: true, others: isFiles, least: coldTarget},
	{what: "cold read of everything / best files, 8 readers",
		table: 1, part: partSizes, figure: "read", also: "read8", faster: true, others: isFiles, least: always(0)},
	{what: "cold read of everything / composite file",
		table: 1, part: partSizes, figure: "read", faster: true, others: is("composite file"), least: always(1)},
	{what: "fill, all on disk / best files, all on disk",
		table: 1, part: partSizes, figure: "durable", faster: true, others: isFiles, least: always(1)},
	{what: "fill, all on disk / composite file, all on disk",
		table: 1, part: partSizes, figure: "durable", faster: true, others: is("composite file"), least: always(0)},
	{what: "fill, ours on disk / best files, theirs in memory",
		table: 1, part: partSizes, figure: "rate", others: isFiles, least: always(1)},
	{what: "fill, ours on disk / raw write of the same bytes, synced",
		table: 1, part: partSizes, figure: "fill", faster: true, limit: "rawfill", least: always(0)},
	{what: "read and parse / composite file without flags",
		table: 1, part: partSuperseded, figure: "load", faster: true, others: is("composite file"), least: superseded50(1.5)},
	{what: "read and parse / composite file, flag in place",
		table: 1, part: partSuperseded, figure: "load", faster: true,
		others: is("composite file, flag in place"), least: always(1)},
	{what: "read and parse / composite file, bitmap",
		table: 1, part: partSuperseded, figure: "load", faster: true, others: is("composite file, bitmap"), least: always(1)},
	{what: "seek and read at random, cold / best files",
		table: 2, figure: "get", faster: true, others: isFiles, least: always(0)},
	{what: "create / best files", table: 2, figure: "create", faster: true, others: isFiles, least: always(0)},
	{what: "verify / the file system's own check of files",
		table: 3, figure: "check", faster: true, others: isFiles, least: always(0)},
	{what: "rate of verify / raw sequential read of the same",
		table: 3, figure: "checkrate", limit: "rawrate", least: always(0.9)},
	{what: "removal / removal of the files",
		table: 3, figure: "remove", faster: true, others: isFiles, least: always(100)},
	{what: "median latency of the last thousands / of the first",
		table: 4, figure: "p50-last", limit: "p50-first", least: always(1.1), atMost: true},
	{what: "cold read of tiny records / best files",
		table: 5, part: partDeep, figure: "read", faster: true, others: isFiles, least: always(0)},
	{what: "fill of tiny records, ours on disk / best files, theirs in memory",
		table: 5, part: partDeep, figure: "rate", others: isFiles, least: always(0)},
}

// ratios returns the table with all comparisons.
func (r *run) ratios() result.Table {
	rows := make([]result.Ratio, 0, len(r.cells)/2)
	for i := range targets {
		t := &targets[i]
		for _, c := range r.cellsIn(t.table, t.part) {
			if c.layout == oursTitle {
				rows = r.ratio(rows, t, c)
			}
		}
	}
	rows = append(rows, r.syncRatios()...)
	return result.Ratios("ratios", "What the figures show", "Ours against others, or against a limit, in one run. "+
		"Medians of the rounds. Targets are for full scale: small data shows fixed costs.", rows)
}

func (r *run) ratio(rows []result.Ratio, t *target, c *cell) []result.Ratio {
	row := result.Ratio{
		Unit: result.FindColumn(allFigures, t.figure).Unit, Ours: r.set.Of(c.String(), t.figure),
		Faster: t.faster, Target: t.least(c), AtMost: t.atMost,
	}
	var against string
	if t.limit != "" {
		row.Limit = r.set.Of(c.String(), t.limit)
		against = result.FindColumn(allFigures, t.limit).Title
	} else {
		against, row.Limit = r.best(t, c)
	}
	if len(row.Ours) == 0 || len(row.Limit) == 0 {
		return rows
	}
	row.Labels = result.Labels("what", t.what, "file system", c.fs.name, "records", c.variant, "against", against)
	return append(rows, row)
}

// best compares the other layouts that were measured under the same conditions as a cell. It returns the layout with
// the best result, and its values by round.
func (r *run) best(t *target, of *cell) (layout string, rounds []float64) {
	var keys, layouts []string
	for _, c := range r.cellsIn(of.table, of.part) {
		if c.comparisonKey() == of.comparisonKey() && t.others(c) {
			keys, layouts = append(keys, c.String()), append(layouts, c.layout)
		}
	}
	at, rounds := r.set.Best(keys, cmp.Or(t.also, t.figure), t.faster)
	if at < 0 {
		return "", nil
	}
	return layouts[at], rounds
}

// syncRatios compares the durable commits of Sheaf with files that are synced one by one.
func (r *run) syncRatios() []result.Ratio {
	var rows []result.Ratio
	for _, c := range r.cellsIn(1, partSync) {
		synced := r.set.Of(c.String(), "rate")
		if c.layout != flatTitle || len(synced) == 0 {
			continue
		}
		for _, o := range r.cellsIn(1, partSizes) {
			ours := r.set.Of(o.String(), "rate")
			if o.fs == c.fs && o.x == c.x && o.layout == oursTitle && len(ours) > 0 {
				rows = append(rows, result.Ratio{
					Labels: result.Labels("what", "fill, durable by group commit / files with a sync each", "file system", c.fs.name,
						"records", o.variant, "against", fmt.Sprintf("%s, %s", c.layout, c.variant)),
					Unit: "/s", Ours: ours, Limit: synced, Target: 20,
				})
			}
		}
	}
	return rows
}
