package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"sheaf.dev/sheaf/client/call/routing"
)

// report returns a table that shows how each fault affected the calls.
func (n *nemesis) report() string {
	successes := n.load.successes(n.cfg.groups)
	n.load.failed.mu.Lock()
	failed := slices.Clone(n.load.failed.all)
	n.load.failed.mu.Unlock()
	byKind := map[string][]*span{}
	for _, s := range n.spans {
		byKind[s.kind] = append(byKind[s.kind], s)
		for _, f := range failed {
			if f.begin < s.end && f.end > s.begin {
				s.failed++
			}
		}
		for g, times := range successes {
			gap := longestGap(times, s.begin, s.end)
			s.gaps = append(s.gaps, gap)
			if slices.Contains(s.led, fmt.Sprint(g)) {
				s.gapsL = append(s.gapsL, gap)
			}
		}
	}
	out := strings.Builder{}
	fmt.Fprintf(&out, "%-15s %5s %12s   %-25s %s\n", "fault", "fired", "calls failed", "longest time without a success, s",
		"")
	fmt.Fprintf(&out, "%-15s %5s %12s   %-25s %s\n", "", "", "meanwhile", "all groups: p50, max",
		"groups led by the victim: p50, max")
	for _, kind := range append(names(faults), etcdStop) {
		spans := byKind[kind]
		if len(spans) == 0 {
			continue
		}
		failures := 0
		var gaps, gapsL []time.Duration
		for _, s := range spans {
			failures += s.failed
			gaps, gapsL = append(gaps, s.gaps...), append(gapsL, s.gapsL...)
		}
		fmt.Fprintf(&out, "%-15s %5d %12d   %-25s %s\n", kind, len(spans), failures, middleAndMost(gaps),
			middleAndMost(gapsL))
	}
	reasons := map[string]int{}
	for _, f := range failed {
		reasons[f.what]++
	}
	fmt.Fprintf(&out, "%d calls on single records, %d of them in the history, %d tries failed (with retries): %v\n",
		n.load.calls.Load(),
		n.load.history.count(), len(failed), reasons)
	return out.String()
}

func middleAndMost(gaps []time.Duration) string {
	if len(gaps) == 0 {
		return "-"
	}
	slices.Sort(gaps)
	return fmt.Sprintf("%6.2f %6.2f", gaps[len(gaps)/2].Seconds(), gaps[len(gaps)-1].Seconds())
}

// successes returns the times of successful responses for each group, in order.
func (l *load) successes(groups int) [][]int64 {
	out := make([][]int64, groups)
	hash := routing.Routing{Mode: routing.Hash, Groups: groups}
	l.history.mu.Lock()
	defer l.history.mu.Unlock()
	for _, o := range l.history.operations {
		if g := hash.GroupOf(o.key); o.end != unknownEnd {
			out[g] = append(out[g], o.end)
		}
	}
	for _, times := range out {
		slices.Sort(times)
	}
	return out
}

// longestGap returns the longest gap between two successes. It considers only gaps that overlap the given period.
func longestGap(times []int64, begin, end int64) time.Duration {
	longest := int64(0)
	for i := max(1, sort.Search(len(times), func(i int) bool {
		return times[i] > begin
	})); i < len(times) && times[i-1] < end; i++ {
		longest = max(longest, times[i]-times[i-1])
	}
	return time.Duration(longest)
}

// summary describes the content of the history in one line.
func (l *load) summary() string {
	l.history.mu.Lock()
	defer l.history.mu.Unlock()
	counts := map[string]int{}
	most := map[int64]int{}
	for _, o := range l.history.operations {
		counts[o.verb.String()]++
		most[o.key]++
		switch {
		case o.end == unknownEnd:
			counts["never answered"]++
		case o.refused == exists:
			counts["refused: exists"]++
		case o.refused == mismatch:
			counts["refused: another version"]++
		case o.ifVersion != 0 || o.ifAbsent:
			counts["condition held"]++
		}
	}
	words := []string{}
	for what, n := range counts {
		words = append(words, fmt.Sprintf("%s %d", what, n))
	}
	slices.SortFunc(words, cmp.Compare)
	return fmt.Sprintf("%d records; %s", len(most), strings.Join(words, ", "))
}
