package flight

import (
	"encoding/json"
	"fmt"

	"sheaf.dev/sheaf/client/recordv1"
)

// routing is the answer of the action "routing". Its meaning is in docs/flight.md.
type routing struct {
	Epoch      uint64         `json:"epoch"`
	Store      string         `json:"store"`
	Mode       string         `json:"mode"`
	HashGroups int            `json:"hash_groups,omitempty"`
	Key        *mix           `json:"key,omitempty"`
	Groups     []routingGroup `json:"groups"`
}

// mix describes the function from an id to its key, so that a client need not know the function in advance.
type mix struct {
	Mix         string   `json:"mix"`
	Shifts      []int    `json:"shifts"`
	Multipliers []string `json:"multipliers"`
}

type routingGroup struct {
	Name      string   `json:"name"`
	KeyFirst  string   `json:"key_first,omitempty"`
	KeyLast   string   `json:"key_last,omitempty"`
	Leader    string   `json:"leader"`
	Addresses []string `json:"addresses"`
}

// hashMix is the mix of docs/placement.md.
var hashMix = mix{Mix: "splitmix64", Shifts: []int{30, 27, 31},
	Multipliers: []string{"bf58476d1ce4e5b9", "94d049bb133111eb"}}

// routingPartGroups is the number of groups in one result.
const routingPartGroups = 4096

// EachRouting calls send for each result of the action "routing". The argument hashGroups is the number of groups of
// Hash routing, and 0 for Named routing.
func EachRouting(table *recordv1.WatchRoutingResponse, hashGroups int, send func(result []byte) error) error {
	for rest := table.GetGroups(); ; {
		part := rest[:min(len(rest), routingPartGroups)]
		rest = rest[len(part):]
		out := routing{Epoch: table.GetEpoch(), Store: table.GetStoreUuid(), Mode: "named", HashGroups: hashGroups,
			Groups: make([]routingGroup, len(part))}
		if hashGroups > 0 {
			out.Mode, out.Key = "hash", &hashMix
		}
		for i, g := range part {
			out.Groups[i] = routingGroup{Name: g.GetGroup(), Leader: g.GetLeaderAddress(),
				Addresses: append([]string{}, g.GetAddresses()...)}
			if hashGroups > 0 {
				out.Groups[i].KeyFirst = fmt.Sprintf("%016x", g.GetKeyFirst())
				out.Groups[i].KeyLast = fmt.Sprintf("%016x", g.GetKeyLast())
			}
		}
		encoded, err := json.Marshal(&out)
		if err == nil {
			err = send(encoded)
		}
		if err != nil || len(rest) == 0 {
			return err
		}
	}
}
