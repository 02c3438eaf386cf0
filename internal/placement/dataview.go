package placement

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// DataView is a view of sheaf.batch.v1.ViewService: an index for each of its groups, at which the records of these
// groups can be read for days (ADR 66). It is unrelated to View, which is how a process sees the placement.
type DataView struct {
	ID      uuid.UUID       `json:"id"`
	By      string          `json:"by,omitempty"` // who opened it
	Opened  time.Time       `json:"opened"`
	Expires time.Time       `json:"expires"` // a gateway removes the view some time after this
	Groups  []DataViewGroup `json:"groups"`  // sorted by name
	// Revision is the revision of the view's key in etcd. It is 0 if the view is not in etcd.
	Revision int64 `json:"-"`
}

// ParseDataViewID parses the id of a view, in the form in which callers receive it. The error says what is wrong with
// the text.
func ParseDataViewID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text {
		return uuid.Nil, fmt.Errorf("%.40q is not the id of a view, as OpenView returns it", text)
	}
	return id, nil
}

// DataViewGroup is one group of a DataView.
type DataViewGroup struct {
	Name string    `json:"name"`
	UUID uuid.UUID `json:"uuid"` // a later group of the same name does not belong to the view
	// Index is the index at which the group is read. It is valid only if Chosen is set.
	Index  uint64 `json:"index,omitempty"`
	Chosen bool   `json:"chosen,omitempty"`
	// Lost says why the group can no longer be read in the view. It is empty if it can be. A group that is lost holds no
	// history, and is never found again.
	Lost string `json:"lost,omitempty"`
}

// DataViewsMax limits the number of views of a store, because every shard reads all of them.
const DataViewsMax = 1000

// Group returns the view's group with the given name.
func (v *DataView) Group(name string) (g DataViewGroup, found bool) {
	i, found := slices.BinarySearchFunc(v.Groups, name, func(g DataViewGroup, name string) int {
		return cmp.Compare(g.Name, name)
	})
	if !found {
		return DataViewGroup{}, false
	}
	return v.Groups[i], true
}

// IsOpen reports whether every group of the view has an index or is lost. A view without this property is being opened,
// or was left behind by a gateway that has died.
func (v *DataView) IsOpen() bool {
	return !slices.ContainsFunc(v.Groups, func(g DataViewGroup) bool { return !g.Chosen && g.Lost == "" })
}

// Lose returns the view without a group, which is lost for the given reason. It returns false if the group is not part
// of the view, or was lost before.
func (v DataView) Lose(name, why string) (DataView, bool) {
	i := slices.IndexFunc(v.Groups, func(g DataViewGroup) bool { return g.Name == name })
	if i < 0 || v.Groups[i].Lost != "" {
		return v, false
	}
	v.Groups = slices.Clone(v.Groups)
	v.Groups[i].Lost = why
	return v, true
}

// Validate returns an error if the view cannot be in etcd.
func (v *DataView) Validate() error {
	if v.ID == uuid.Nil || len(v.Groups) == 0 || v.Expires.IsZero() {
		return fmt.Errorf("view %s has %d groups and expires at %v: it needs an id, groups and a time", v.ID, len(v.Groups),
			v.Expires)
	}
	for i, g := range v.Groups {
		if g.UUID == uuid.Nil || i > 0 && v.Groups[i-1].Name >= g.Name {
			return fmt.Errorf("view %s: group %.40q has no UUID, or is not in order", v.ID, g.Name)
		}
	}
	return nil
}

// HoldOf returns the index from which on a group's history must be kept for the given views: the lowest one of the
// views that contain the group. A view whose index is not chosen yet needs everything, so its index counts as 0. If
// no view needs the group's history, on is false.
func HoldOf(views []DataView, group uuid.UUID) (at uint64, on bool) {
	for i := range views {
		for _, g := range views[i].Groups {
			if g.UUID != group || g.Lost != "" {
				continue
			}
			if !on || g.Index < at {
				at, on = g.Index, true
			}
		}
	}
	return at, on
}

// OldestOf returns the view that was opened first, of those that need the history of one of the given groups, and the
// first such group in it. It is the view that is given up first.
func OldestOf(views []DataView, groups map[uuid.UUID]bool) (oldest DataView, group DataViewGroup, found bool) {
	for _, v := range views {
		for _, g := range v.Groups {
			if !groups[g.UUID] || g.Lost != "" {
				continue
			}
			if !found || v.Opened.Before(oldest.Opened) {
				oldest, group, found = v, g, true
			}
			break
		}
	}
	return oldest, group, found
}
