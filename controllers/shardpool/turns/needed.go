package turns

import (
	"fmt"
	"slices"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/placement"
)

// lagMax is the number of entries by which a copy may lag behind the newest one and still count as up to date.
const lagMax = 1000

// Needed returns a sentence that names the groups that would have no majority of up-to-date copies without a shard. It
// is empty if there are none.
func Needed(view *fleet.Places, shard string, turns []Turn) string {
	applied, newest := map[string]map[string]uint64{}, map[string]uint64{}
	for _, t := range turns {
		if t.Report == nil {
			continue
		}
		applied[t.Name] = map[string]uint64{}
		for _, g := range t.Report.GetGroups() {
			if name := g.GetGroup(); g.GetState().Serves() {
				applied[t.Name][name] = g.GetAppliedIndex()
				newest[name] = max(newest[name], g.GetAppliedIndex())
			}
		}
	}
	var names []string
	for _, name := range view.Names() {
		g := view.Groups[name]
		voters := g.Voters()
		if !slices.ContainsFunc(voters, fleet.OnShard(shard)) {
			continue
		}
		well := view.There(g, func(m placement.Member) bool {
			index, serves := applied[m.Shard][name]
			return m.Shard == shard || !serves || index+lagMax < newest[name]
		})
		if well < placement.Majority(len(voters)) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("without it %s would have no majority of copies that are up to date", fleet.GroupWords(names))
}
