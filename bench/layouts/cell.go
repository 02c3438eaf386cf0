package layouts

import (
	"context"
	"fmt"
	"strings"

	"sheaf.dev/sheaf/bench/result"
)

// cell is one measurement of a layout on a file system. Each round performs it once, on a new file system.
type cell struct {
	table   int
	fs      *fileSystem
	layout  string
	variant string // other conditions, such as "20 KB" or "50 % superseded"; compared layouts have the same variant
	part    string // part of the table; empty if the table has only one part
	x       float64
	needs   need
	run     func(ctx context.Context, s *site) error
}

// withLayout returns a copy of the cell that measures another layout under the same conditions.
func (c cell) withLayout(layout string, needs need, run func(ctx context.Context, s *site) error) cell {
	c.layout, c.needs, c.run = layout, c.fs.cost(needs), run
	return c
}

// comparisonKey returns a key. Cells with the same key are compared with each other, and are measured one directly
// after another.
func (c *cell) comparisonKey() string {
	return fmt.Sprintf("%d/%s/%s/%s", c.table, c.part, c.fs.name, c.variant)
}

// String returns the unique name of the measurement.
func (c *cell) String() string {
	return strings.Join([]string{fmt.Sprintf("table %d", c.table), c.fs.name, c.variant, c.layout}, ", ")
}

// resultText is the key under which a measurement may store a sentence in addition to its metrics.
const resultText = "text"

// allFigures lists the columns of all metrics, in the order in which tables show them.
var allFigures = []result.Column{
	{Key: "mkfs", Title: "mkfs", Unit: "s", Better: result.Lower},
	{Key: "fill", Title: "fill, until the last call returns", Unit: "s", Better: result.Lower},
	{Key: "rate", Title: "rate of that", Unit: "/s", Better: result.Higher, Log: true},
	{Key: "durable", Title: "fill, until all is on disk", Unit: "s", Better: result.Lower},
	{Key: "rawfill", Title: "raw write of the same", Unit: "s", Better: result.Lower},
	{Key: "load", Title: "read and parse, cold", Unit: "s", Better: result.Lower, Log: true},
	{Key: "read", Title: "read all, cold", Unit: "s", Better: result.Lower, Log: true},
	{Key: "read8", Title: "the same, 8 readers", Unit: "s", Better: result.Lower, Log: true},
	{Key: "create", Title: "create", Unit: "s", Better: result.Lower, Log: true},
	{Key: "seek", Title: "seek, cold", Unit: "s", Better: result.Lower, Log: true},
	{Key: "seek-warm", Title: "seek, warm", Unit: "s", Better: result.Lower, Log: true},
	{Key: "get", Title: "seek and read, cold", Unit: "s", Better: result.Lower, Log: true},
	{Key: "get-warm", Title: "seek and read, warm", Unit: "s", Better: result.Lower, Log: true},
	{Key: "delete", Title: "delete, cold", Unit: "s", Better: result.Lower, Log: true},
	{Key: "iterate", Title: "iterate, cold", Unit: "s", Better: result.Lower, Log: true},
	{Key: "check", Title: "check", Unit: "s", Better: result.Lower, Log: true},
	{Key: "checkrate", Title: "rate of the check", Unit: "B/s", Better: result.Higher},
	{Key: "rawrate", Title: "raw read of the same", Unit: "B/s", Better: result.Higher},
	{Key: "remove", Title: "remove", Unit: "s", Better: result.Lower, Log: true},
	{Key: "p50-first", Title: "p50, first thousands", Unit: "s", Better: result.Lower, Log: true},
	{Key: "p50-last", Title: "p50, last thousands", Unit: "s", Better: result.Lower, Log: true},
	{Key: "p99-first", Title: "p99, first thousands", Unit: "s", Better: result.Lower, Log: true},
	{Key: "p99-last", Title: "p99, last thousands", Unit: "s", Better: result.Lower, Log: true},
	{Key: "total", Title: "all together", Unit: "s", Better: result.Lower, Log: true},
	{Key: "names", Title: "records in it", Better: result.Higher},
	{Key: "disk", Title: "on disk", Unit: "B", Better: result.Lower},
	{Key: resultText, Title: "what happens"},
}
