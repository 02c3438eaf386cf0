// Package listing writes the groups of a restore into etcd. It asks the source of the restore which groups the new
// store has, checks the answer, and passes it to package registry. See docs/archive.md, "Restore".
package listing

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// List is the complete answer of a source.
type List struct {
	Store    uuid.UUID // UUID of the new store
	Archived uuid.UUID // UUID of the store whose archive is restored
	Routing  placement.Routing
	At       time.Time // the point in time as of which the groups are restored
	Groups   []Group   // in the order of their names; a group without a name is in no store, and only has an error
}

// Group is one group of a List.
type Group struct {
	Name string // empty if it is unknown
	UUID uuid.UUID
	Err  string // why the group cannot be restored; empty if it can be
}

// errBroken is the error for a list that no source makes. Nothing is created from it.
var errBroken = errors.New("the source's list of groups is wrong")

// check returns an error unless the list can be the list of a store: each group of hash routing is in it, and all names
// and UUIDs differ.
func (l *List) check() error {
	if l.Store == uuid.Nil || l.Store == l.Archived {
		return fmt.Errorf("%w: the store has UUID %s, and the archived one %s", errBroken, l.Store, l.Archived)
	}
	if err := l.Routing.Validate(); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	slices.SortFunc(l.Groups, func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
	ids, numbered := make(map[uuid.UUID]bool, len(l.Groups)), 0
	for i, g := range l.Groups {
		switch {
		case g.UUID == uuid.Nil || ids[g.UUID]:
			return fmt.Errorf("%w: group %.100q has the UUID %s, which is zero or that of another group", errBroken, g.Name,
				g.UUID)
		case g.Name == "" && g.Err == "":
			return fmt.Errorf("%w: group %s has no name", errBroken, g.UUID)
		case g.Name != "" && i > 0 && l.Groups[i-1].Name == g.Name:
			return fmt.Errorf("%w: group %.100q is listed twice", errBroken, g.Name)
		}
		ids[g.UUID] = true
		if g.Name == "" {
			continue
		}
		if err := placement.ValidateGroupName(g.Name); err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		if _, err := l.number(g.Name); err != nil {
			return err
		}
		numbered++
	}
	if n := l.Routing.Groups; l.Routing.Mode == placement.Hash && numbered != n {
		return fmt.Errorf("%w: the store has %d groups, and %d are listed", errBroken, n, numbered)
	}
	return nil
}

// number returns the number of a group of hash routing, and 0 with named routing.
func (l *List) number(name string) (int, error) {
	if l.Routing.Mode != placement.Hash {
		return 0, nil
	}
	n, err := strconv.Atoi(name)
	if err != nil || n < 0 || n >= l.Routing.Groups || placement.GroupName(n) != name {
		return 0, fmt.Errorf("%w: the store has the groups 0 to %d, and group %.100q is listed", errBroken,
			l.Routing.Groups-1, name)
	}
	return n, nil
}

// lostShown is the number of groups that the error of Whole names.
const lostShown = 10

// Whole returns an error that names the groups that cannot be restored, or nil if all groups can be.
func (l *List) Whole() error {
	var words []string
	lost := 0
	for _, g := range l.Groups {
		if g.Err == "" {
			continue
		}
		if lost++; lost > lostShown {
			continue
		}
		name := g.Name
		if name == "" {
			name = "with an unknown name"
		}
		words = append(words, fmt.Sprintf("group %s: %s", name, g.Err))
	}
	switch {
	case lost == 0:
		return nil
	case lost > lostShown:
		words = append(words, fmt.Sprintf("and %d more", lost-lostShown))
	}
	return fmt.Errorf("as of %s, the archive cannot restore %d of %d groups: %s", l.At.UTC().Format(time.RFC3339Nano),
		lost, len(l.Groups), strings.Join(words, "; "))
}

// Placed returns the groups as etcd is to hold them: they wait for their restore, and have no members. Groups that
// cannot be restored wait as well, until a person gives up their restore. A group whose name is unknown is left out.
func (l *List) Placed() ([]placement.Group, error) {
	groups := make([]placement.Group, 0, len(l.Groups))
	for _, g := range l.Groups {
		if g.Name == "" {
			continue
		}
		n, err := l.number(g.Name)
		if err != nil {
			return nil, err
		}
		one := placement.NewGroup(l.Routing, g.Name, n)
		one.UUID, one.Restoring = g.UUID, true
		groups = append(groups, one)
	}
	return groups, nil
}
