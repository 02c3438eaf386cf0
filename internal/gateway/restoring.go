package gateway

import (
	"fmt"

	"sheaf.dev/sheaf/internal/placement"
)

// restores explains what a group that waits for its restore waits for.
func (t *table) restores(group string) string {
	restore := t.view.Meta.Restore
	switch {
	case restore == nil:
		return "waits for its restore, and meta in etcd has no source: run sheaf recover placement --restore"
	case len(t.view.Targets[group].Shards) == 0:
		return fmt.Sprintf("waits for its restore from %s: it has no shard yet", restore.Source)
	}
	return fmt.Sprintf("waits for its restore from %s: shard %s fetches it", restore.Source,
		t.view.Targets[group].Shards[0])
}

// unlisted returns the route to a group that may be in the list of a restore, which is not complete yet.
func (t *table) unlisted(group string) *route {
	return &route{group: group, holds: true, waits: "is not known yet: " + t.view.Meta.WaitsForList()}
}

// addUnlisted adds routes for the groups of Hash routing that a restored store has and that have no key. Their list is
// not complete yet, or etcd has lost the keys. Such groups may hold records, so no scan may skip them.
func (t *table) addUnlisted() {
	if t.hash == nil || t.view.Meta.Restore == nil {
		return
	}
	for n, r := range t.hash {
		if r != nil {
			continue
		}
		name := placement.GroupName(n)
		t.hash[n] = &route{group: name, holds: true, unknown: placement.LostGroup}
		if t.view.Meta.Listing() {
			t.hash[n] = t.unlisted(name)
		}
		t.named[name] = t.hash[n]
	}
}

// listed returns an error while the groups of a store with Named routing are not all known, because their list is not
// complete yet. Otherwise it returns nil. With Hash routing, each group has a route, so calls to the group fail.
func (t *table) listed() error {
	if t.hash != nil || !t.view.Meta.Listing() {
		return nil
	}
	return restoring("%s", t.view.Meta.WaitsForList())
}

// RestoreStatus describes the restore from which a store was created.
type RestoreStatus struct {
	Source string `json:"source"` // HOST:PORT at which the source serves the groups
	// Listing means that the list of the groups is not complete yet, so that the number of waiting groups is unknown.
	Listing bool   `json:"listing"`
	At      string `json:"at,omitempty"`      // point in time as of which the groups are restored
	Problem string `json:"problem,omitempty"` // why the list is not complete
}

// restore returns the status of the restore, and the number of groups that wait for it. The status is nil if the store
// is no restore. The number is nil if it is unknown: the list of the groups is not complete, or the key of a group is
// lost or cannot be read.
func (g *Gateway) restore(t *table) (st *RestoreStatus, waiting *int) {
	meta := t.view.Meta
	if !meta.Listing() && len(t.view.Unknown()) == 0 && !t.view.AnyLost() {
		n := 0
		for _, group := range t.view.Groups {
			if group.Restoring {
				n++
			}
		}
		waiting = &n
	}
	if meta.Restore == nil {
		return nil, waiting
	}
	st = &RestoreStatus{Source: meta.Restore.Source, Listing: meta.Restore.Listing, At: meta.Restore.At}
	if !st.Listing {
		return st, waiting
	}
	if g.cfg.ListProblem != nil {
		st.Problem = g.cfg.ListProblem()
	}
	return st, nil
}
