package care

import (
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/storage/group"
)

// A scan sees its group as it was when the scan began, so data that is overwritten or deleted meanwhile remains on
// disk. Callers that hang or have disappeared must not fill a volume in this way, so their scans are closed. The next
// call with such a scan's cursor fails with CURSOR_EXPIRED.

const (
	// abandonedAfter is how long a scan may go without a read before it counts as abandoned. A caller that has merely
	// lost its connection continues earlier than that.
	abandonedAfter = 10 * time.Second
	// scansPart is a divisor: if scans keep more than the size of the volume divided by scansPart (a sixteenth),
	// abandoned scans are closed even if there is free space.
	scansPart = 16
)

// scanLoss is the reason why a scan was closed to free space. It is a label of the metric that counts such scans.
type scanLoss string

const (
	scansAbandoned scanLoss = "cut_off" // scans that nobody reads
	scansOldest    scanLoss = "oldest"  // the older half of all scans
)

// scanOf describes an open scan and the log that it reads.
type scanOf struct {
	log *group.Log
	group.OpenScan
}

// losers returns the scans to be closed for this reason. Scans that keep no data are never closed.
func (l scanLoss) losers(scans []scanOf, now time.Time) []scanOf {
	keep := func(s scanOf) bool {
		return !s.Keeps || l == scansAbandoned && (s.Read || now.Sub(s.Used) < abandonedAfter)
	}
	left := slices.DeleteFunc(slices.Clone(scans), keep)
	if l == scansOldest {
		slices.SortStableFunc(left, func(a, b scanOf) int { return a.Opened.Compare(b.Opened) })
		left = left[:(len(left)+1)/2]
	}
	return left
}

// keptByScans returns the superseded bytes that were kept only for open scans when the group was last examined.
func keptByScans(r *group.Reclaim) int64 { return r.Scans + r.ScanBlobs }

// giveUpScans closes scans of the given kind, in groups in which scans keep much superseded data. It returns false if
// it closed none.
func (c *Compactor) giveUpScans(which scanLoss) bool {
	if c.Off {
		return false
	}
	var scans []scanOf
	for _, g := range c.servedGroups(nil) {
		if kept := keptByScans(&g.stats.Reclaim); kept <= 0 || kept < g.stats.StoredBytes/garbagePart {
			continue
		}
		for _, scan := range g.Log().Scans() {
			scans = append(scans, scanOf{g.Log(), scan})
		}
	}
	lost := which.losers(scans, time.Now())
	for _, scan := range lost {
		scan.log.CloseScan(scan.ID)
	}
	if len(lost) > 0 {
		c.metrics.scansLost.WithLabelValues(string(which)).Add(float64(len(lost)))
		c.Logger.Info("gave up scans, as they keep superseded records on a volume that needs the space", "why", string(which),
			"scans", len(lost))
	}
	return len(lost) > 0
}

// limitScans closes abandoned scans, if scans keep more data than they may.
func (c *Compactor) limitScans() {
	kept := int64(0)
	for _, g := range c.servedGroups(nil) {
		kept += keptByScans(&g.stats.Reclaim)
	}
	if total := c.Disk.TotalBytes(); total > 0 && kept > total/scansPart {
		c.giveUpScans(scansAbandoned)
	}
}
