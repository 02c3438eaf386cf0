package care

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// uncompacted holds a reason why superseded bytes of a group are still stored, and the number of these bytes.
type uncompacted struct {
	reason string
	bytes  int64
	text   string
}

const (
	holdDue        = "due"
	holdThreshold  = "threshold"
	holdNewest     = "newest_segment"
	holdVersions   = "versions"
	holdAge        = "age"
	holdArchive    = "archive"
	holdScan       = "scan"
	holdRequests   = "request_ids"
	holdTombstones = "tombstones"
	holdDamage     = "damage"
	holdOff        = "off"
	holdNoSpace    = "no_room"
	holdMemory     = "memory"
	holdError      = "error"
	holdOther      = "other"
)

// HoldReasons lists the reasons why superseded bytes are still stored, as the API and the metric name them.
var HoldReasons = []string{
	holdDue, holdThreshold, holdNewest, holdVersions, holdAge, holdArchive, holdScan, holdRequests, holdTombstones,
	holdDamage, holdOff, holdNoSpace, holdMemory, holdError, holdOther,
}

// holds returns the reasons why superseded bytes of a group are still stored, computed from sizes in memory. Reasons
// without bytes are left out.
func (c *Compactor) holds(name string, stats *group.Stats) (out []uncompacted) {
	r, retention := &stats.Reclaim, &c.Disk.Log.Retention
	add := func(reason string, bytes int64, text string, args ...any) {
		if bytes > 0 {
			out = append(out, uncompacted{reason, bytes, fmt.Sprintf(text, args...)})
		}
	}
	reason, text := c.whyFree(name, stats)
	add(reason, r.Free-r.Unlooked, "%s", text)
	add(holdNewest, r.Newest,
		"they are in the newest segment, which is compacted when it is full (at %s; it has %s)%s or free space is "+
			"low, and with "+
			"--all",
		units.Bytes(r.SegmentMax), units.Bytes(r.NewestEnd), c.whyNewest())
	add(holdVersions, r.Versions, "retention keeps the newest %d versions of a record", max(1, retention.Versions))
	add(holdAge, r.Age, "retention keeps versions younger than %v", retention.MinAge)
	add(holdArchive, stats.HeldBytes,
		"the archive of the store does not have them yet, or they were superseded less than 10 minutes ago: they also go "+
			"when free space is low, or when more is held than --archive-hold-max says")
	add(holdScan, keptByScans(r),
		"open scans see them (%d, of which %d are read now): they go when these end, or nobody has read them for %v, or "+
			"free space is low",
		stats.Scans, stats.ScansRead, c.ScanTTL)
	add(holdRequests, r.Requests,
		"they answer writes that are repeated: a small entry without data for each superseded write with a request id, for "+
			"10 minutes or "+
			"65,536 further writes")
	add(holdTombstones, r.Tombstones,
		"deletes, kept until every copy has them, nothing older of the record is stored, and their request ids have run out")
	add(holdOther, r.Other,
		"the last look could not free them: a membership change that is not settled yet, or what a segment holds that is "+
			"not known; the next "+
			"look is within 5 minutes")
	return out
}

// whyFree returns the reason why superseded bytes are still stored although they could be freed.
func (c *Compactor) whyFree(name string, stats *group.Stats) (reason, text string) {
	r, k := &stats.Reclaim, &c.Compaction
	failure := c.Problems.Of(problems.Compacting + name)
	switch {
	case len(stats.Damages) > 0:
		return holdDamage, "the group is damaged: repair it, or accept the loss, first"
	case k.Off:
		return holdOff, "compaction in the background is off (--compaction-off)"
	case errors.Is(failure, format.ErrNoSpace):
		return holdNoSpace, "a segment cannot be rewritten: " + failure.Error()
	case errors.Is(failure, group.ErrMemory):
		return holdMemory, "the memory limit leaves no memory for a segment that is rewritten: " + failure.Error()
	case failure != nil:
		return holdError, failure.Error()
	case c.isDue(stats):
		return holdDue, "they are compacted within --compaction-interval, one group after another"
	}
	return holdThreshold, fmt.Sprintf(
		"a compaction begins at %.0f %% of the %s in sealed segments and blobs, and %s, or what makes a segment together "+
			"with the newest one", 100*k.SupersededShareMin, units.Bytes(r.Sealed), units.Bytes(c.supersededMin()))
}

// whyNewest describes when the newest segment is compacted before it is full. It returns an empty string if that
// never happens.
func (c *Compactor) whyNewest() string {
	least := c.supersededMin()
	if least >= c.SupersededBytesMin {
		return ""
	}
	return fmt.Sprintf(", %s and half of it are superseded,", units.Bytes(least))
}

// Explain examines a group in the same way as a compaction, and returns the reasons why superseded data remains.
func (c *Compactor) Explain(sv *replicas.Served) ([]*recordv1.CompactionHold, error) {
	c.limitTombstones(sv)
	c.hold(sv)
	if len(sv.Log().Stats().Damages) == 0 {
		if _, err := sv.Log().Compact(c.Context, group.CompactOptions{LookOnly: true}); err != nil {
			return nil, err
		}
	}
	stats := sv.Log().Stats()
	var out []*recordv1.CompactionHold
	for _, h := range c.holds(sv.Group.Name, &stats) {
		out = append(out, &recordv1.CompactionHold{Reason: h.reason, Bytes: h.bytes, Text: h.text})
	}
	return out, nil
}

// Uncompacted returns the superseded bytes that are still stored, summed over all groups by reason.
func (c *Compactor) Uncompacted() []*recordv1.UncompactedBytes {
	byReason, most := map[string]*recordv1.UncompactedBytes{}, map[string]int64{}
	for _, g := range c.servedGroups(nil) {
		for _, h := range c.holds(g.Name(), &g.stats) {
			sum := byReason[h.reason]
			if sum == nil {
				sum = &recordv1.UncompactedBytes{Reason: h.reason}
				byReason[h.reason] = sum
			}
			sum.Bytes += h.bytes
			sum.Groups++
			// The names break ties, so that the result is stable even though the order of the groups is random.
			if of := most[h.reason]; h.bytes > of || h.bytes == of && g.Name() < sum.GetGroup() {
				most[h.reason], sum.Group, sum.Text = h.bytes, g.Name(), h.text
			}
		}
	}
	return slices.SortedFunc(maps.Values(byReason), func(a, b *recordv1.UncompactedBytes) int {
		return cmp.Or(cmp.Compare(b.GetBytes(), a.GetBytes()), cmp.Compare(a.GetReason(), b.GetReason()))
	})
}
