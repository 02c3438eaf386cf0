package result

import (
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"sync"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// pngScale is the number of pixels of the picture per pixel of the layout, in each direction. With 2, the picture is
// also sharp on displays with high resolution.
const pngScale = 2

// pngCanvas draws a plot as pixels.
type pngCanvas struct {
	img   *image.RGBA
	fonts *fonts
	err   error // the first error
}

var pngColours = []color.RGBA{
	inkColour: {0x1c, 0x20, 0x24, 0xff}, mutedColour: {0x5b, 0x65, 0x70, 0xff}, gridColour: {0xdd, 0xe2, 0xe7, 0xff},
	seriesColour: {0x0b, 0x63, 0xb5, 0xff}, {0xc2, 0x41, 0x0c, 0xff}, {0x15, 0x80, 0x3d, 0xff}, {0x93, 0x33, 0xa8, 0xff},
	{0xa1, 0x62, 0x07, 0xff}, {0x0e, 0x74, 0x90, 0xff}, {0xbe, 0x18, 0x5d, 0xff}, {0x47, 0x55, 0x69, 0xff},
}

type fonts struct{ regular, bold *opentype.Font }

var loadFonts = sync.OnceValues(func() (*fonts, error) {
	regular, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, err
	}
	bold, err := opentype.Parse(gobold.TTF)
	return &fonts{regular, bold}, err
})

// writePNG writes the plot as a PNG picture.
func (p *Plot) writePNG(w io.Writer) error {
	if err := p.check(); err != nil {
		return err
	}
	loaded, err := loadFonts()
	if err != nil {
		return err
	}
	c := &pngCanvas{img: image.NewRGBA(image.Rect(0, 0, int(wide.width*pngScale), int(wide.height*pngScale))),
		fonts: loaded}
	draw.Draw(c.img, c.img.Bounds(), image.White, image.Point{}, draw.Src)
	p.draw(c, wide)
	if c.err != nil {
		return c.err
	}
	return png.Encode(w, c.img)
}

// fill fills the area that the path encloses.
func (c *pngCanvas) fill(colour int, path func(*vector.Rasterizer)) {
	size := c.img.Bounds().Size()
	z := vector.NewRasterizer(size.X, size.Y)
	path(z)
	z.Draw(c.img, c.img.Bounds(), image.NewUniform(pngColours[colour]), image.Point{})
}

func (c *pngCanvas) polyline(points []point, colour int, width float64, dash []float64) {
	if len(points) == 2 && len(dash) == 0 && (points[0].x == points[1].x || points[0].y == points[1].y) {
		// Horizontal and vertical lines are drawn as rectangles, because these are fast to draw and have sharp edges.
		half := width / 2
		r := image.Rect(pixel(min(points[0].x, points[1].x)-half), pixel(min(points[0].y, points[1].y)-half),
			pixel(max(points[0].x, points[1].x)+half), pixel(max(points[0].y, points[1].y)+half))
		draw.Draw(c.img, r, image.NewUniform(pngColours[colour]), image.Point{}, draw.Src)
		return
	}
	c.fill(colour, func(z *vector.Rasterizer) {
		for _, s := range strokes(points, dash) {
			bar(z, s[0], s[1], width/2)
		}
	})
}

func pixel(f float64) int { return int(math.Round(f * pngScale)) }

// bar adds one piece of a line to the path. All bars have the same orientation, so that overlapping bars do not cancel
// each other.
func bar(z *vector.Rasterizer, from, to point, half float64) {
	length := math.Hypot(to.x-from.x, to.y-from.y)
	if length == 0 {
		return
	}
	ux, uy := (to.x-from.x)/length*half, (to.y-from.y)/length*half
	// Extend both ends, so that no gap remains between two pieces.
	from, to = point{from.x - ux/2, from.y - uy/2}, point{to.x + ux/2, to.y + uy/2}
	outline(z, []point{{from.x - uy, from.y + ux}, {to.x - uy, to.y + ux}, {to.x + uy, to.y - ux},
		{from.x + uy, from.y - ux}})
}

func outline(z *vector.Rasterizer, points []point) {
	for i, p := range points {
		x, y := float32(p.x*pngScale), float32(p.y*pngScale)
		if i == 0 {
			z.MoveTo(x, y)
		} else {
			z.LineTo(x, y)
		}
	}
	z.ClosePath()
}

// strokes divides a line into its dashes.
func strokes(points []point, dash []float64) (pieces [][2]point) {
	at, left, pen := 0, math.Inf(1), true
	if len(dash) > 0 {
		left = dash[0]
	}
	for i := 1; i < len(points); i++ {
		from, to := points[i-1], points[i]
		length := math.Hypot(to.x-from.x, to.y-from.y)
		for length > 0 {
			step := min(left, length)
			next := point{from.x + (to.x-from.x)*step/length, from.y + (to.y-from.y)*step/length}
			if pen {
				pieces = append(pieces, [2]point{from, next})
			}
			from, length, left = next, length-step, left-step
			if left <= 0 {
				at, pen = (at+1)%len(dash), !pen
				left = dash[at]
			}
		}
	}
	return pieces
}

func (c *pngCanvas) marks(points []point, shape, colour int) {
	c.fill(colour, func(z *vector.Rasterizer) {
		for _, p := range points {
			outline(z, markOutline(p, shape))
		}
	})
}

// markOutline returns the outline of a mark around a point. The shape is a circle, a square, a diamond or a triangle.
func markOutline(p point, shape int) []point {
	const r = 3.6
	switch shape % 4 {
	case 1:
		return []point{{p.x - r, p.y - r}, {p.x + r, p.y - r}, {p.x + r, p.y + r}, {p.x - r, p.y + r}}
	case 2:
		return []point{{p.x, p.y - r*1.4}, {p.x + r*1.4, p.y}, {p.x, p.y + r*1.4}, {p.x - r*1.4, p.y}}
	case 3:
		return []point{{p.x, p.y - r*1.4}, {p.x + r*1.3, p.y + r}, {p.x - r*1.3, p.y + r}}
	}
	circle := make([]point, 0, 12)
	for i := range 12 {
		sin, cos := math.Sincos(float64(i) * math.Pi / 6)
		circle = append(circle, point{p.x + r*cos, p.y + r*sin})
	}
	return circle
}

func (c *pngCanvas) text(at point, s string, style textStyle) {
	f, colour := c.fonts.regular, pngColours[inkColour]
	if style.bold {
		f = c.fonts.bold
	}
	if style.muted {
		colour = pngColours[mutedColour]
	}
	face, err := opentype.NewFace(f, &opentype.FaceOptions{Size: style.size * pngScale, DPI: 72,
		Hinting: font.HintingFull})
	if err != nil {
		c.err = err
		return
	}
	d := font.Drawer{Dst: c.img, Src: image.NewUniform(colour), Face: face}
	x := fixed.Int26_6(at.x * pngScale * 64)
	d.Dot = fixed.Point26_6{X: x - d.MeasureString(s)*fixed.Int26_6(style.anchor+1)/2,
		Y: fixed.Int26_6(at.y * pngScale * 64)}
	d.DrawString(s)
}
