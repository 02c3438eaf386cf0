package result

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// The layout of a plot is computed only once. The plot is then drawn either on an SVG canvas or on a pixel canvas, so
// both pictures show the same.

// canvas draws the parts of a plot. Coordinates are in pixels from the upper left.
type canvas interface {
	polyline(points []point, colour int, width float64, dash []float64)
	text(at point, s string, style textStyle)
	marks(points []point, shape, colour int)
}

type point struct{ x, y float64 }

// These numbers identify the colours of a canvas. seriesColour is the colour of the first series. The next series has
// the next number, and so on.
const (
	inkColour = iota
	mutedColour
	gridColour
	seriesColour
)

type textStyle struct {
	size   float64
	anchor int // which part of the text is placed at the point: left end (-1), middle (0) or right end (1)
	bold   bool
	muted  bool
}

// pageSize is the size of a plot, together with the size of its font.
type pageSize struct {
	width, height, font float64
	untitled            bool // the plot has no title, because the page around it shows one
}

var (
	wide   = pageSize{width: 760, height: 430, font: 14}
	narrow = pageSize{width: 340, height: 330, font: 13}
)

// Series also differ in dashes and marks, so that they can be distinguished without colours.
var (
	dashes      = [][]float64{nil, {8, 4}, {2, 3}, {10, 3, 2, 3}, {5, 5}, {14, 4}}
	marksMax    = 40   // a series with at most this many points has a mark on each of them
	marksOfMany = 8    // number of marks on a series with more points
	pointsMax   = 1200 // maximum number of points that are drawn for a series; a longer series is thinned
	seriesStep  = 8    // number of colours for series; further series repeat them
)

// letterWidth is the approximate width of a letter as a fraction of the font size. Most letters are a little narrower,
// which leaves room for browsers with wider fonts.
const letterWidth = 0.56

func widthOf(s string, size float64) float64 {
	return float64(utf8.RuneCountInString(s)) * size * letterWidth
}

// layout holds the positions of a plot's parts.
type layout struct {
	page                     pageSize
	left, right, top, bottom float64 // edges of the plot's area
	x, y                     axis
}

// draw draws a plot. The title and the y axis label are above the plot's area and the legend is below it, so that no
// text covers a line.
func (p *Plot) draw(c canvas, page pageSize) {
	l := layout{page: page, x: axisOf(p, 0, p.LogX), y: axisOf(p, 1, p.LogY)}
	l.x.unit, l.y.unit = p.XUnit, p.YUnit
	at := page.font * 0.4
	if !page.untitled {
		for _, s := range wrap(p.Title, page.font*1.1, page.width-8) {
			at += page.font * 1.35
			c.text(point{4, at}, s, textStyle{size: page.font * 1.1, anchor: -1, bold: true})
		}
	}
	at += page.font * 1.4
	c.text(point{4, at}, p.YLabel, textStyle{size: page.font, anchor: -1, muted: true})
	l.top = at + page.font*0.9
	rows := p.legend(page)
	l.bottom = page.height - float64(len(rows))*page.font*1.6 - page.font*3.4
	l.left = 10
	for _, t := range l.y.ticks {
		l.left = max(l.left, 10+widthOf(l.y.tick(t), page.font))
	}
	l.right = page.width - page.font*1.2
	if l.x.empty() || l.y.empty() {
		c.text(point{page.width / 2, (l.top + l.bottom) / 2}, "no figures", textStyle{size: page.font, muted: true})
		return
	}
	l.axes(c)
	c.text(point{(l.left + l.right) / 2, l.bottom + page.font*2.8}, p.XLabel, textStyle{size: page.font, muted: true})
	for i := range p.Series {
		l.series(c, &p.Series[i], i)
	}
	at = l.bottom + page.font*3.2
	for _, row := range rows {
		at += page.font * 1.5
		x := 6.0
		for _, i := range row {
			sample := []point{{x, at - page.font*0.35}, {x + 26, at - page.font*0.35}}
			c.polyline(sample, seriesColour+i%seriesStep, 2.2, dashes[i%len(dashes)])
			c.marks([]point{{x + 13, at - page.font*0.35}}, i, seriesColour+i%seriesStep)
			c.text(point{x + 32, at}, p.Series[i].Name, textStyle{size: page.font, anchor: -1})
			x += 32 + widthOf(p.Series[i].Name, page.font) + 18
		}
	}
}

// legend divides the series into rows that fit the width.
func (p *Plot) legend(page pageSize) (rows [][]int) {
	x := math.Inf(1)
	for i := range p.Series {
		w := 32 + widthOf(p.Series[i].Name, page.font)
		if x+w > page.width-6 {
			rows, x = append(rows, nil), 6
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], i)
		x += w + 18
	}
	return rows
}

func (l *layout) axes(c canvas) {
	style := textStyle{size: l.page.font, muted: true}
	for _, t := range l.y.ticks {
		y := l.y.place(t, l.bottom, l.top)
		c.polyline([]point{{l.left, y}, {l.right, y}}, gridColour, 1, nil)
		c.text(point{l.left - 5, y + l.page.font*0.35}, l.y.tick(t), textStyle{size: l.page.font, anchor: 1, muted: true})
	}
	end := math.Inf(-1) // right end of the previous label
	for _, t := range l.x.ticks {
		x := l.x.place(t, l.left, l.right)
		c.polyline([]point{{x, l.bottom}, {x, l.bottom + 4}}, mutedColour, 1, nil)
		half := widthOf(l.x.tick(t), l.page.font) / 2
		if x-half < end+6 {
			continue // this label would overlap the previous one
		}
		c.text(point{min(x, l.page.width-half-2), l.bottom + l.page.font*1.4}, l.x.tick(t), style)
		end = x + half
	}
	c.polyline([]point{{l.left, l.bottom}, {l.right, l.bottom}}, mutedColour, 1, nil)
}

func (l *layout) series(c canvas, s *Series, i int) {
	points := make([]point, 0, len(s.Points))
	for _, p := range thin(s.Points) {
		points = append(points, point{l.x.place(p[0], l.left, l.right), l.y.place(p[1], l.bottom, l.top)})
	}
	colour := seriesColour + i%seriesStep
	if len(points) > 1 {
		c.polyline(points, colour, 2, dashes[i%len(dashes)])
	}
	some := points
	if len(points) > marksMax {
		some = nil
		// A long series has marks only at some points, which are evenly spaced.
		for n := range marksOfMany {
			some = append(some, points[(2*n+1)*len(points)/(2*marksOfMany)])
		}
	}
	c.marks(some, i, colour)
}

// thin returns the minimum and the maximum in each section of a long series. A line of single pixels cannot show more.
func thin(points [][2]float64) [][2]float64 {
	if len(points) <= pointsMax {
		return points
	}
	step := (2*len(points) + pointsMax - 1) / pointsMax
	kept := make([][2]float64, 0, pointsMax+2)
	for stretch := range slices.Chunk(points, step) {
		least, most := 0, 0
		for i := range stretch {
			if stretch[i][1] < stretch[least][1] {
				least = i
			}
			if stretch[i][1] > stretch[most][1] {
				most = i
			}
		}
		kept = append(kept, stretch[min(least, most)])
		if least != most {
			kept = append(kept, stretch[max(least, most)])
		}
	}
	return kept
}

// axis is the range of an axis with its ticks and unit.
type axis struct {
	low, high float64
	log       bool
	ticks     []float64
	unit      string
}

// tick formats a value as the label of a tick.
func (a *axis) tick(v float64) string {
	if a.unit == "" {
		return shortNumber(v)
	}
	s := Format(v, a.unit)
	if number, unit, ok := strings.Cut(s, " "); ok && strings.Contains(number, ".") { // shorten 2.00 µs to 2 µs
		return strings.TrimRight(strings.TrimRight(number, "0"), ".") + " " + unit
	}
	return s
}

func (a *axis) empty() bool { return len(a.ticks) == 0 }

// place returns the position of a value in pixels. The axis begins at the position from and ends at the position to.
func (a *axis) place(v, from, to float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log10(v), math.Log10(low), math.Log10(high)
	}
	return from + (v-low)/(high-low)*(to-from)
}

func axisOf(p *Plot, dimension int, log bool) axis {
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range p.Series {
		for _, at := range s.Points {
			low, high = min(low, at[dimension]), max(high, at[dimension])
		}
	}
	switch {
	case low > high:
		return axis{}
	case log:
		return logAxis(low, high)
	}
	if dimension == 1 || low > 0 && low < high/3 {
		low, high = min(low, 0), max(high, 0) // a bar or line would look too high if the axis did not begin at 0
	}
	return linearAxis(low, high)
}

func linearAxis(low, high float64) axis {
	if low == high {
		low, high = min(low, 0), max(high, 0, low+1)
	}
	step := math.Pow(10, math.Floor(math.Log10((high-low)/4)))
	for _, f := range []float64{1, 2, 5, 10} {
		if (high-low)/(step*f) <= 6 {
			step *= f
			break
		}
	}
	a := axis{low: math.Floor(low/step+1e-9) * step, high: math.Ceil(high/step-1e-9) * step}
	if a.low == a.high {
		a.high = a.low + step
	}
	for i := 0; i < 20 && a.low+float64(i)*step <= a.high+step/2; i++ {
		a.ticks = append(a.ticks, math.Round((a.low+float64(i)*step)/step)*step)
	}
	return a
}

func logAxis(low, high float64) axis {
	from, to := int(math.Floor(math.Log10(low)+1e-9)), int(math.Ceil(math.Log10(high)-1e-9))
	if from == to {
		to++
	}
	factors := []float64{1}
	if to-from <= 2 {
		factors = []float64{1, 2, 5}
	}
	every := max(1, (to-from)/6)
	a := axis{log: true}
	for e := from; e <= to; e += every {
		for _, f := range factors {
			a.ticks = append(a.ticks, f*math.Pow(10, float64(e)))
		}
	}
	// The axis ends at the nearest ticks outside the values.
	a.low, a.high = math.Pow(10, float64(from)), math.Pow(10, float64(to))
	for _, t := range a.ticks {
		if t <= low*(1+1e-9) {
			a.low = t
		}
		if t >= high*(1-1e-9) && t > a.low {
			a.high = t
			break
		}
	}
	a.ticks = slices.DeleteFunc(a.ticks, func(t float64) bool { return t < a.low*(1-1e-9) || t > a.high*(1+1e-9) })
	return a
}

// wrap breaks a string into lines that fit the width.
func wrap(s string, size, width float64) []string {
	var lines []string
	for word := range strings.FieldsSeq(s) {
		if n := len(lines); n > 0 && widthOf(lines[n-1]+" "+word, size) <= width {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
