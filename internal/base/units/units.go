// Package units formats sizes, numbers and lists for people.
package units

import (
	"strconv"
	"strings"
)

// Bytes formats a size with a binary unit: "0 B", "1.5 MiB".
func Bytes(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return strconv.FormatInt(n, 10) + " B"
	}
	f, i := float64(n)/(1<<10), 0
	for f >= 1023.95 && i < len(units)-1 {
		f /= 1 << 10
		i++
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + units[i:i+1] + "iB"
}

// Count returns a number with its noun: "1 file", "2,000 files".
func Count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Number(n) + " " + many
}

// Number formats a number with commas: "1,234,567".
func Number(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// Some joins at most the given number of names, and adds how many others there are, as in "a, b and 3 more".
func Some(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(names, ", ")
}
