// Package doctor reports what a check of unserved volumes has found, and what to do next.
package doctor

import (
	"fmt"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/finding"
)

// Tree converts the result of a check of unserved volumes into findings.
func Tree(r *cli.VerifyTreeReport) []finding.Finding {
	var f finding.List
	for _, p := range r.Problems {
		f.Add(finding.VolumeProblem, "volume", p, "")
	}
	for i := range r.Groups {
		g := &r.Groups[i]
		where := "group " + g.Group + " in " + g.Dir
		if g.Error != "" {
			f.Add(finding.VolumeFailed, where, g.Error, "")
		}
		if n := len(g.Damages); n > 0 {
			d := &g.Damages[0]
			f.Add(finding.VolumeDamaged, where, fmt.Sprintf("%s; the first: %s, offset %d, %d bytes: %s%s", finding.Places(n),
				d.File,
				d.Offset, d.Length, d.What,
				cli.IDsWords(d.IDs, d.IDsUnknown)),
				"where other shards hold copies, start the shard: it takes over what is whole; else put the records again, or "+
					"give them up: "+
					"sheaf verify "+g.Dir+" --repair")
		}
		if g.TornBytes > 0 {
			f.Add(finding.VolumeTorn, where, fmt.Sprintf("a torn tail of %s: writes that were never acknowledged",
				cli.FormatBytes(g.TornBytes)), "nothing: the next load truncates it")
		}
		if g.Joining {
			f.Add(finding.VolumeJoining, where, "the replica is only joining: nothing that counts is there yet", "")
		}
	}
	return f.Sorted()
}
