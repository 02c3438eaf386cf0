package placement

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A store may have a property that earlier versions of Sheaf would ignore, to the harm of its data. Such a property is
// a need. Needs are written into the JSON of Meta behind the routing mode, where every version of
// Sheaf refuses what it does not know:
//
//	{"routing": {"mode": "Hash; needs a Sheaf that knows: restore", "groups": 256}, ...}
//
// A process that has never seen a usable Meta neither serves nor places a group. So a need is there from the creation
// of the store on. It is never removed, because an etcd that is set back may bring back the state that the need is
// about.

// needsText separates the routing mode from the needs, which are separated by ", ".
const needsText = "; needs a Sheaf that knows: "

// needRestore is the need of a store that was created from an archive. Versions without it would create the groups that
// wait for their restore empty.
const needRestore = "restore"

// knownNeeds are the needs that this version knows.
var knownNeeds = []string{needRestore}

// NeedsError means that a store needs a newer version of Sheaf.
type NeedsError struct{ Needs []string }

func (e *NeedsError) Error() string {
	return fmt.Sprintf("the store needs a version of Sheaf that knows: %s; this version does not know it, and leaves the "+
		"store alone: use the version of the store's other processes", strings.Join(e.Needs, ", "))
}

// needs returns the needs of the store.
func (m Meta) needs() (needs []string) {
	if m.Restore != nil {
		needs = append(needs, needRestore)
	}
	return needs
}

// plainMeta is Meta without its methods.
type plainMeta Meta

// MarshalJSON implements json.Marshaler.
func (m Meta) MarshalJSON() ([]byte, error) {
	if needs := m.needs(); len(needs) > 0 {
		m.Routing.Mode += Mode(needsText + strings.Join(needs, ", "))
	}
	return json.Marshal(plainMeta(m))
}

// UnmarshalJSON implements json.Unmarshaler. It returns a *NeedsError if the store needs a newer version of Sheaf.
func (m *Meta) UnmarshalJSON(b []byte) error {
	var plain plainMeta
	if err := json.Unmarshal(b, &plain); err != nil {
		return err
	}
	mode, needs, has := strings.Cut(string(plain.Routing.Mode), needsText)
	if has {
		unknown := slices.DeleteFunc(strings.Split(needs, ", "), func(need string) bool {
			return slices.Contains(knownNeeds, need)
		})
		if len(unknown) > 0 {
			return &NeedsError{Needs: unknown}
		}
	}
	plain.Routing.Mode = Mode(mode)
	*m = Meta(plain)
	return nil
}
