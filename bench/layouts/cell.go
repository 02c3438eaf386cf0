package layouts

import (
	"context"
	"fmt"
	"strings"

	"sheaf.dev/sheaf/bench/result"
)

// cell is one measurement: a layout on a file system. It is done once a round, each time on a new file system.
type cell struct {
	table   int
	fs      *fileSystem
	layout  string
	variant string // what else tells it apart: "20 KB", "50 % superseded"; compared are the layouts of one variant
	part    string // of a table that has several
	x       float64
	needs   need
	run     func(ctx context.Context, s *site, m *figures) error
}

func (c *cell) key() string {
	return fmt.Sprintf("%d/%s/%s/%s/%s", c.table, c.part, c.fs.name, c.variant, c.layout)
}

// compared tells cells apart that are measured next to each other.
func (c *cell) compared() string {
	return fmt.Sprintf("%d/%s/%s/%s", c.table, c.part, c.fs.name, c.variant)
}

func (c *cell) String() string {
	return strings.Join([]string{fmt.Sprintf("table %d", c.table), c.fs.name, c.variant, c.layout}, ", ")
}

// figures are what one measurement gave.
type figures struct {
	order  []string
	values map[string]float64
	series map[string][][2]float64
	text   map[string]string
}

func newFigures() *figures {
	return &figures{values: map[string]float64{}, series: map[string][][2]float64{}, text: map[string]string{}}
}

func (m *figures) set(key string, value float64) {
	if _, ok := m.values[key]; !ok {
		m.order = append(m.order, key)
	}
	m.values[key] = value
}

// String is the figures in the order in which they came.
func (m *figures) String() string {
	parts := make([]string, 0, len(m.order)+len(m.text))
	for _, key := range m.order {
		f := findFigure(key)
		parts = append(parts, f.title+" "+result.Format(m.values[key], f.unit))
	}
	for _, text := range m.text {
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// figure is a column of the tables.
type figure struct {
	key, title, unit, better string
	log                      bool
}

// allFigures are the columns that there are, in their order.
var allFigures = []figure{
	{"mkfs", "mkfs", "s", result.Lower, false},
	{"fill", "fill, until the last call returns", "s", result.Lower, false},
	{"rate", "rate of that", "/s", result.Higher, true},
	{"durable", "fill, until all is on disk", "s", result.Lower, false},
	{"rawfill", "raw write of the same", "s", result.Lower, false},
	{"load", "read and parse, cold", "s", result.Lower, true},
	{"read", "read all, cold", "s", result.Lower, true},
	{"read8", "the same, 8 readers", "s", result.Lower, true},
	{"create", "create", "s", result.Lower, true},
	{"seek", "seek, cold", "s", result.Lower, true},
	{"seek-warm", "seek, warm", "s", result.Lower, true},
	{"get", "seek and read, cold", "s", result.Lower, true},
	{"get-warm", "seek and read, warm", "s", result.Lower, true},
	{"delete", "delete, cold", "s", result.Lower, true},
	{"iterate", "iterate, cold", "s", result.Lower, true},
	{"check", "check", "s", result.Lower, true},
	{"checkrate", "rate of the check", "B/s", result.Higher, false},
	{"rawrate", "raw read of the same", "B/s", result.Higher, false},
	{"remove", "remove", "s", result.Lower, true},
	{"p50-first", "p50, first thousands", "s", result.Lower, true},
	{"p50-last", "p50, last thousands", "s", result.Lower, true},
	{"p99-first", "p99, first thousands", "s", result.Lower, true},
	{"p99-last", "p99, last thousands", "s", result.Lower, true},
	{"total", "all together", "s", result.Lower, true},
	{"names", "records in it", "", result.Higher, false},
	{"disk", "on disk", "B", result.Lower, false},
}

func findFigure(key string) figure {
	for _, f := range allFigures {
		if f.key == key {
			return f
		}
	}
	return figure{key: key, title: key}
}
