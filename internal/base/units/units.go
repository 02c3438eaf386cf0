// Package units formats sizes for people.
package units

import "strconv"

// Bytes formats a size with a binary unit: "0 B", "1.5 MiB".
func Bytes(n int64) string {
	const units = "KMGTPE"
	if n < 0 {
		return strconv.FormatInt(n, 10) + " B"
	}
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
