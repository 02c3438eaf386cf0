package archiving

import "time"

// Serving is the state of the source of a restore after it has read which groups the archive has. Its state is Starting
// before.
const Serving State = "serving"

// RefusedMax is the maximum number of groups in SourceReport.Refused.
const RefusedMax = 20

// SourceReport describes what the source of a restore (`sheaf-archive source`) serves. It serves the report at Path on
// its HTTP port.
type SourceReport struct {
	Version string `json:"version"`
	State   State  `json:"state"`           // Starting or Serving
	Store   string `json:"store,omitempty"` // UUID of the new store

	// The following fields are zero while the state is Starting.

	Time    *time.Time `json:"time,omitempty"`    // time as of which the groups are served
	Routing string     `json:"routing,omitempty"` // routing of the archived store: hash or named
	// HashGroups is the number of groups of the archived store, or 0 if its routing is named.
	HashGroups int `json:"hashGroups,omitempty"`
	Groups     int `json:"groups"` // groups of the new store, including those that cannot be restored
	// RefusedGroups is the number of groups that cannot be restored.
	RefusedGroups int `json:"refusedGroups"`
	// Refused describes the first RefusedMax groups that cannot be restored, by name.
	Refused []RefusedGroup `json:"refused,omitempty"`
}

// RefusedGroup is a group that cannot be restored.
type RefusedGroup struct {
	Group string `json:"group"` // name, or the UUID in the archive if the name is unknown
	Error string `json:"error"`
}
