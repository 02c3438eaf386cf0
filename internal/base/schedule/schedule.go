// Package schedule computes the times of a schedule that is written as five fields of cron.
package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule is a sequence of times in UTC.
type Schedule struct {
	text string
	spec cron.Schedule
}

// parser accepts what a CronJob of Kubernetes accepts, apart from names such as @daily.
var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// textMax is the maximum length of a schedule.
const textMax = 100

// Parse parses five fields: minute, hour, day of the month, month, and day of the week, as in "0 3 * * *". All times
// are in UTC. It refuses a schedule whose time never comes, such as February 30.
func Parse(text string) (*Schedule, error) {
	fail := func(err error) (*Schedule, error) {
		return nil, fmt.Errorf("schedule %q: %w: give minute, hour, day of the month, month and day of the week, in UTC, "+
			"such as 0 3 * * *", text, err)
	}
	switch {
	case len(text) > textMax:
		text = text[:textMax] + "..."
		return fail(errors.New("it is too long"))
	case strings.ContainsAny(text, "=@"): // the parser would read a time zone, and panics if nothing follows the zone
		return fail(errors.New("it has no time zone and no name"))
	}
	spec, err := parser.Parse(text)
	if err != nil {
		return fail(err)
	}
	s := &Schedule{text: text, spec: spec}
	if s.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return fail(errors.New("its time never comes"))
	}
	return s, nil
}

// String returns the five fields.
func (s *Schedule) String() string { return s.text }

// Next returns the first time of the schedule after a given time.
func (s *Schedule) Next(after time.Time) time.Time {
	next := s.spec.Next(after.UTC())
	if next.IsZero() { // the library looks five years ahead, and February 29 may be eight years away, as in 2096
		next = s.spec.Next(after.UTC().AddDate(4, 0, 0))
	}
	return next
}
