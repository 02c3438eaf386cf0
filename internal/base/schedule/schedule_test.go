package schedule

import (
	"strings"
	"testing"
	"time"
)

func TestTimesAreThoseOfCronInUTC(t *testing.T) {
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	for _, c := range []struct{ schedule, after, next string }{
		{"0 3 * * *", "2026-11-30T02:59:59Z", "2026-11-30T03:00:00Z"},
		{"0 3 * * *", "2026-11-30T03:00:00Z", "2026-12-01T03:00:00Z"},
		{"0 3 * * *", "2026-11-30T03:30:00+02:00", "2026-11-30T03:00:00Z"}, // 01:30 in UTC
		{"30 */6 * * *", "2026-11-30T18:30:00Z", "2026-12-01T00:30:00Z"},
		{"0 0 1 JAN,jul *", "2026-11-30T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"0 5 * * SUN", "2026-11-30T00:00:00Z", "2026-12-06T05:00:00Z"},
		{"0 5 1 * 1", "2026-11-30T00:00:00Z", "2026-11-30T05:00:00Z"}, // the day of the month or that of the week
		{"0 0 29 2 *", "2026-11-30T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"0 0 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"}, // 2100 is no leap year
	} {
		s, err := Parse(c.schedule)
		if err != nil {
			t.Errorf("%s: %v", c.schedule, err)
			continue
		}
		if got := s.Next(at(c.after)); !got.Equal(at(c.next)) || s.String() != c.schedule {
			t.Errorf("%s after %s: %v, want %s", s, c.after, got, c.next)
		}
	}
}

func TestWrongSchedulesAreRefused(t *testing.T) {
	for text, says := range map[string]string{
		"": "empty", "0 3 * *": "expected exactly 5 fields", "0 3 * * * *": "expected exactly 5 fields",
		"60 3 * * *": "above maximum", "0 24 * * *": "above maximum", "x 3 * * *": "failed to parse",
		"*/0 3 * * *": "step of range should be a positive number", "0 0 30 2 *": "never comes",
		"@daily": "no time zone and no name", "TZ=": "no time zone and no name",
		"TZ=Europe/Berlin 0 3 * * *": "no time zone and no name", "CRON_TZ=UTC": "no time zone and no name",
		strings.Repeat("1,", 60): "too long",
	} {
		if s, err := Parse(text); err == nil || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), "such as 0 3 * * *") || len(err.Error()) > 400 {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
}

// No text makes Parse or Next panic, and the next time is after the given one.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"0 3 * * *", "TZ=", "*/5 0-23/2 ? JAN-MAR MON", "@every 1s", "0 0 31 2 *"} {
		f.Add(text, int64(0))
	}
	f.Fuzz(func(t *testing.T, text string, after int64) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		at := time.Unix(after%(1<<33), 0)
		if next := s.Next(at); !next.After(at) {
			t.Errorf("%q after %v: %v", text, at, next)
		}
	})
}
