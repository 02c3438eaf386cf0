package drill

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// turn returns the groups that this drill takes: at most n of those that were not deleted, in the order of their UUIDs,
// beginning behind the last group of the newest drill.
func turn(groups []*reader.Group, last *object.Drill, n int) []*reader.Group {
	groups = slices.DeleteFunc(slices.Clone(groups), func(g *reader.Group) bool { return g.Gone })
	slices.SortFunc(groups, func(a, b *reader.Group) int { return bytes.Compare(a.UUID[:], b.UUID[:]) })
	if last != nil && len(last.Groups) > 0 {
		after := last.Groups[len(last.Groups)-1].Group
		at, found := slices.BinarySearchFunc(groups, after, func(g *reader.Group, id uuid.UUID) int {
			return bytes.Compare(g.UUID[:], id[:])
		})
		if found {
			at++
		}
		groups = slices.Concat(groups[at:], groups[:at])
	}
	return groups[:min(n, len(groups))]
}

// errNoTime means that no time is known at which the groups can be read.
var errNoTime = errors.New("the archive does not say up to when its groups are archived: let `sheaf-archive run` " +
	"archive for some minutes, or give a time")

// instant returns a random point in time of the window in which all of the given groups can be read. A group that
// cannot be read before another one ends, such as a group that was created a moment ago, is then refused at this time.
func instant(ctx context.Context, groups []*reader.Group, random func(n int64) int64) (time.Time, error) {
	covered := reader.Covered(groups)
	if covered.IsZero() {
		return covered, errNoTime
	}
	first := time.Time{}
	for _, g := range groups {
		if t := g.First(ctx).Time; t.After(first) {
			first = t
		}
	}
	if first.IsZero() || !first.Before(covered) {
		return covered, nil
	}
	return first.Add(time.Duration(random(int64(covered.Sub(first)) + 1))), nil
}
