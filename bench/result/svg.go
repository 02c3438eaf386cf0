package result

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"
)

// svgCanvas writes SVG. Its colours are variables that the page around it sets for light or dark mode. Without such a
// page, the SVG has the colours of light mode.
type svgCanvas struct{ b bytes.Buffer }

var svgColours = []string{
	inkColour: "var(--ink,#1c2024)", mutedColour: "var(--muted,#5b6570)", gridColour: "var(--line,#dde2e7)",
	seriesColour: "var(--s0,#0b63b5)", "var(--s1,#c2410c)", "var(--s2,#15803d)", "var(--s3,#9333a8)",
	"var(--s4,#a16207)", "var(--s5,#0e7490)", "var(--s6,#be185d)", "var(--s7,#475569)",
}

const svgFont = "system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans','DejaVu Sans',sans-serif"

// writeSVG writes the plot as an SVG file of its own.
func (p *Plot) writeSVG(w io.Writer) error {
	if err := p.check(); err != nil {
		return err
	}
	_, err := io.WriteString(w, p.svg(wide, ""))
	return err
}

func (p *Plot) svg(page pageSize, class string) string {
	c := &svgCanvas{}
	fmt.Fprintf(&c.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img" aria-label="%s"`, page.width,
		page.height, html.EscapeString(p.Title))
	if class == "" {
		fmt.Fprintf(&c.b, ` width="%g" height="%g"`, page.width, page.height)
	} else {
		fmt.Fprintf(&c.b, ` class="%s"`, class)
	}
	fmt.Fprintf(&c.b, ` style="font-family:%s">`, svgFont)
	c.b.WriteString(`<rect width="100%" height="100%" style="fill:var(--card,#fff)"/>`)
	p.draw(c, page)
	c.b.WriteString("</svg>\n")
	return c.b.String()
}

func (c *svgCanvas) polyline(points []point, colour int, width float64, dash []float64) {
	c.b.WriteString(`<polyline points="`)
	for i, p := range points {
		if i > 0 {
			c.b.WriteByte(' ')
		}
		c.b.WriteString(coordinate(p.x) + "," + coordinate(p.y))
	}
	fmt.Fprintf(&c.b, `" style="fill:none;stroke:%s;stroke-width:%g;stroke-linejoin:round`, svgColours[colour], width)
	if len(dash) > 0 {
		each := make([]string, 0, len(dash))
		for _, d := range dash {
			each = append(each, strconv.FormatFloat(d, 'g', -1, 64))
		}
		c.b.WriteString(";stroke-dasharray:" + strings.Join(each, " "))
	}
	c.b.WriteString(`"/>`)
}

func (c *svgCanvas) text(at point, s string, style textStyle) {
	colour, weight := svgColours[inkColour], ""
	if style.muted {
		colour = svgColours[mutedColour]
	}
	if style.bold {
		weight = ";font-weight:600"
	}
	anchor := map[int]string{-1: "start", 0: "middle", 1: "end"}[style.anchor]
	fmt.Fprintf(&c.b, `<text x="%s" y="%s" text-anchor="%s" style="fill:%s;font-size:%gpx%s">%s</text>`,
		coordinate(at.x), coordinate(at.y), anchor, colour, style.size, weight, html.EscapeString(s))
}

func (c *svgCanvas) marks(points []point, shape, colour int) {
	for _, p := range points {
		outline := markOutline(p, shape)
		c.b.WriteString(`<polygon points="`)
		for i, q := range outline {
			if i > 0 {
				c.b.WriteByte(' ')
			}
			c.b.WriteString(coordinate(q.x) + "," + coordinate(q.y))
		}
		fmt.Fprintf(&c.b, `" style="fill:%s"/>`, svgColours[colour])
	}
}

func coordinate(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }
