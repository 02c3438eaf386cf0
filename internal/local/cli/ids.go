package cli

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/base/units"
)

// ParseID reads a record id: a decimal int64, or up to 16 hexadecimal digits after 0x (0xffffffffffffffff is -1).
func ParseID(s string) (int64, error) {
	if digits, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		u, err := strconv.ParseUint(digits, 16, 64)
		if err != nil {
			return 0, Usagef("id %q: behind 0x an id has 1 to 16 hexadecimal digits", s)
		}
		return int64(u), nil
	}
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, Usagef(
			"id %q: an id is a decimal number from -9223372036854775808 to 9223372036854775807, or hexadecimal behind 0x", s)
	}
	return id, nil
}

var negativeNumber = regexp.MustCompile(`^-[0-9]+$`)

// protectNegativeIDs allows a negative id on the command line without "--" before it: `sheaf get -5`. A flag parser
// would read such an id as flags, so protectNegativeIDs rewrites the id in hexadecimal. The value of a flag
// ("--timestamp -5") remains unchanged.
func protectNegativeIDs(args []string) []string {
	out := make([]string, len(args))
	copy(out, args)
	for i, arg := range out {
		if arg == "--" {
			break
		}
		if !negativeNumber.MatchString(arg) || i == 0 || strings.HasPrefix(out[i-1], "-") {
			continue
		}
		if id, err := strconv.ParseInt(arg, 10, 64); err == nil {
			out[i] = fmt.Sprintf("0x%x", uint64(id))
		}
	}
	return out
}

// ParseTimestamp reads a time as Unix nanoseconds or as RFC 3339, and returns Unix nanoseconds.
func ParseTimestamp(s string) (int64, error) {
	if ns, err := strconv.ParseInt(s, 10, 64); err == nil {
		return ns, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return 0, Usagef("time %q: give Unix nanoseconds, or RFC 3339 as in 2026-01-02T15:04:05.123456789Z", s)
	}
	ns := t.UnixNano()
	if !time.Unix(0, ns).Equal(t) {
		return 0, Usagef("time %q: must lie between the years 1678 and 2262", s)
	}
	return ns, nil
}

// ParseAttributes reads k=v pairs.
func ParseAttributes(pairs []string) (map[string][]byte, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	attributes := make(map[string][]byte, len(pairs))
	for _, pair := range pairs {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return nil, Usagef("attribute %q: must be key=value", pair)
		}
		if _, twice := attributes[k]; twice {
			return nil, Usagef("attribute %q is given twice", k)
		}
		attributes[k] = []byte(v)
	}
	return attributes, nil
}

var sizeSuffixes = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"k", 1e3}, {"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40}, {"B", 1},
}

// parseSize reads a number of bytes, with or without a unit: 1048576, 8MiB, 8Mi, 8M (all 1024), 8MB (1000).
func parseSize(s string) (int64, error) {
	number, factor := strings.TrimSpace(s), int64(1)
	for _, u := range sizeSuffixes {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, factor = strings.TrimSpace(n), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > (1<<63-1)/factor {
		return 0, Usagef("size %q: give a number of bytes, or one with a unit as in 256MiB", s)
	}
	return n * factor, nil
}

// Size is the value of a flag in bytes, in the syntax of parseSize.
type Size int64

// String implements pflag.Value. It returns "0" for 0, which pflag leaves out of the help as a default.
func (s *Size) String() string {
	if *s == 0 {
		return "0"
	}
	return FormatBytes(int64(*s))
}

// Set implements pflag.Value.
func (s *Size) Set(text string) error {
	n, err := parseSize(text)
	if err != nil {
		return err
	}
	*s = Size(n)
	return nil
}

// Type implements pflag.Value.
func (s *Size) Type() string { return "size" }

// FormatBytes formats a size with a binary unit: "0 B", "1.5 MiB".
func FormatBytes(n int64) string { return units.Bytes(n) }

// Count returns a number with its noun: "1 file", "2,000 files".
func Count(n int64, one, many string) string { return units.Count(n, one, many) }

// FormatCount formats a number with commas: "1,234,567".
func FormatCount(n int64) string { return units.Number(n) }
