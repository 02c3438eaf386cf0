package result

import (
	"math"
	"strconv"
	"strings"
)

// Format formats a value with its unit and three significant digits.
func Format(v float64, unit string) string {
	switch unit {
	case "B", "B/s":
		return scaled(v, unit, 1000, "", "k", "M", "G", "T", "P")
	case "s":
		return seconds(v)
	case "ns":
		return seconds(v / 1e9)
	case "/s":
		return groupDigits(v) + "/s"
	case "x":
		return digits(v) + " x"
	case "%":
		return strconv.FormatFloat(v, 'f', 0, 64) + " %"
	case "":
		return digits(v)
	}
	return groupDigits(v) + " " + unit
}

// digits formats a number with three significant digits, and with no more decimals than are useful.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 1000:
		return groupDigits(v)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.01:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// groupDigits formats a large number with separated thousands.
func groupDigits(v float64) string {
	if math.Abs(v) < 1000 {
		return digits(v)
	}
	s := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	var b strings.Builder
	if v < 0 {
		b.WriteByte('-')
	}
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

func scaled(v float64, unit string, base float64, prefixes ...string) string {
	i := 0
	for math.Abs(v) >= base && i < len(prefixes)-1 {
		v /= base
		i++
	}
	return digits(v) + " " + prefixes[i] + unit
}

func seconds(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0 s"
	case a < 1e-6:
		return digits(v*1e9) + " ns"
	case a < 1e-3:
		return digits(v*1e6) + " µs"
	case a < 1:
		return digits(v*1e3) + " ms"
	case a < 600:
		return digits(v) + " s"
	}
	return digits(v/60) + " min"
}

// shortNumber formats a number for the label of a tick on an axis.
func shortNumber(v float64) string {
	a := math.Abs(v)
	if a != 0 && (a < 1e-3 || a >= 1e15) {
		return strconv.FormatFloat(v, 'e', 0, 64)
	}
	prefixes := []string{"", "k", "M", "G", "T"}
	i := 0
	for math.Abs(v) >= 1000 && i < len(prefixes)-1 {
		v /= 1000
		i++
	}
	return strconv.FormatFloat(v, 'g', 4, 64) + prefixes[i]
}

// show formats a value in the unit of the column.
func (c *Column) show(v Value) string {
	if v.Text != "" {
		return v.Text
	}
	return Format(v.Median, c.Unit)
}

// showRange formats the range of the rounds, or returns "" if there was only one round.
func (c *Column) showRange(v Value) string {
	if v.Rounds < 2 || v.Min == v.Max || c.Unit == "" && v.Text != "" {
		return ""
	}
	return Format(v.Min, c.Unit) + " – " + Format(v.Max, c.Unit)
}
