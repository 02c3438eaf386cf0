package archivecli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/local/cli"
)

// copyPlan specifies the records that are read from one group.
type copyPlan struct {
	group *reader.Group
	index uint64
	ids   []int64 // sorted and without duplicates; nil means all records
}

// wants reports whether a record should be copied.
func (p copyPlan) wants(id int64) bool {
	if p.ids == nil {
		return true
	}
	_, ok := slices.BinarySearch(p.ids, id)
	return ok
}

// copyIDs holds ids of records in one group.
type copyIDs struct {
	group string // name or UUID
	ids   []int64
}

// wanted returns the groups to read, sorted by name, each with the ids of its records.
func (c *copier) wanted(a *reader.Archive) ([]copyIDs, error) {
	if c.opts.IDs == nil {
		return []copyIDs{{group: c.opts.Group}}, nil
	}
	h := a.Header()
	hash := routing.Routing{Mode: routing.Hash, Groups: h.Groups}
	byGroup := map[string][]int64{}
	lines := bufio.NewScanner(c.opts.IDs)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		group, number := c.opts.Group, text
		if at := strings.LastIndexByte(text, '/'); at >= 0 {
			group, number = text[:at], text[at+1:]
		}
		id, err := cli.ParseID(number)
		if err != nil {
			return nil, cli.Usagef("--ids: line %d: %w", n, err)
		}
		if group == "" && h.Routing == "hash" {
			group = strconv.Itoa(hash.GroupOf(id))
		}
		if group == "" {
			return nil, cli.Usagef("--ids: line %d: the archive has Named routing: write GROUP/ID, or give --group", n)
		}
		byGroup[group] = append(byGroup[group], id)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("--ids: %w", err)
	}
	if len(byGroup) == 0 {
		return nil, cli.Usagef("--ids: there is no id")
	}
	var wanted []copyIDs
	for _, group := range cli.SortedKeys(byGroup) {
		ids := byGroup[group]
		slices.Sort(ids)
		wanted = append(wanted, copyIDs{group: group, ids: slices.Compact(ids)})
	}
	return wanted, nil
}

// plan determines, for each group, the index in the group's history whose state is copied. If this state cannot be
// read for one of the groups, the whole copy fails before anything is written.
func (c *copier) plan(ctx context.Context, a *reader.Archive, at At, wanted []copyIDs) (plan []copyPlan, err error) {
	if at, err = at.in(ctx, a); err != nil {
		return nil, err
	}
	for _, w := range wanted {
		g, err := groupAt(ctx, a, w.group, at)
		if err != nil {
			return nil, coded(err)
		}
		index, nearest, err := at.nearest(ctx, g, c.opts.Nearest)
		if err != nil {
			return nil, fmt.Errorf("copy: %w", err)
		}
		if nearest != "" {
			c.out.Sayf("%s", nearest)
		}
		plan = append(plan, copyPlan{group: g, index: index, ids: w.ids})
		c.report.Groups = append(c.report.Groups, CopyGroup{Group: g.Name, UUID: g.UUID.String(), Index: index,
			Nearest: nearest})
	}
	return plan, nil
}

// groupAt returns the group that had the given name at a point, or the group with the given UUID. If a group of this
// name was deleted, and another group was later created with the same name, groupAt returns the deleted group for
// points up to the last time that the archive covers for that group.
func groupAt(ctx context.Context, a *reader.Archive, name string, at At) (*reader.Group, error) {
	groups, err := a.Groups(ctx)
	if err != nil {
		return nil, err
	}
	var then []*reader.Group
	for _, g := range groups {
		if g.Name == name && at.Point != "" && at.has(g) {
			return g, nil
		}
		if g.Gone && g.Name == name && !at.Time.IsZero() && !at.Time.After(g.Covered) {
			then = append(then, g)
		}
	}
	if len(then) == 0 {
		return a.Find(ctx, name)
	}
	return slices.MinFunc(then, func(a, b *reader.Group) int { return a.Covered.Compare(b.Covered) }), nil
}

// nearest returns the index in a group's history that corresponds to the point. If the state at this index cannot be
// read and the argument other is true, nearest chooses another index. It chooses the nearest earlier point that can
// be read, or else the nearest later one, and the result instead is a text that describes this choice.
func (at At) nearest(ctx context.Context, g *reader.Group, other bool) (index uint64, instead string, err error) {
	index, err = at.index(ctx, g)
	if err == nil {
		err = g.Check(ctx, index)
	}
	refused, ok := errors.AsType[*reader.RefusedError](err)
	if err == nil || !ok {
		return index, "", err
	}
	for _, p := range []reader.Point{refused.Earlier, refused.Later} {
		if p.Index == 0 || g.Check(ctx, p.Index) != nil {
			continue
		}
		if !other {
			return 0, "", fmt.Errorf("%w: --nearest takes %s", err, p)
		}
		return p.Index, fmt.Sprintf("%s: %s %s: taken is %s", g, refused.Asked, refused.Why, p), nil
	}
	return 0, "", err
}
