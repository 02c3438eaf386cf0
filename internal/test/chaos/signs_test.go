package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
)

// statusReports collects what the shards report about themselves while faults occur. None of the reported values may be
// impossible.
type statusReports struct {
	wait sync.WaitGroup

	mu       sync.Mutex
	looked   int
	answered map[string]int // number of responses, by state
}

// watchStatus requests the status of every shard repeatedly, until ctx is done.
func (n *nemesis) watchStatus(ctx context.Context) {
	n.signs.answered = map[string]int{}
	for _, h := range n.shards {
		n.signs.wait.Go(func() {
			for ctx.Err() == nil {
				n.lookAt(ctx, h)
				select {
				case <-ctx.Done():
				case <-time.After(200 * time.Millisecond):
				}
			}
		})
	}
}

func (n *nemesis) lookAt(ctx context.Context, h *server) {
	call, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	shards, err := recordv1.AllShards(call, h.admin)
	groups, errGroups := recordv1.AllGroups(call, h.admin, &recordv1.ListGroupsRequest{})
	n.signs.mu.Lock()
	defer n.signs.mu.Unlock()
	n.signs.looked++
	if err == nil {
		for _, row := range shards.GetShards() {
			n.signs.answered[row.GetState().String()]++
			for _, what := range impossible(row) {
				n.load.history.violate("shard %s says of itself: %s", h.name, what)
			}
		}
	}
	if errGroups == nil {
		for _, row := range groups.GetGroups() {
			if row.GetRecords() < 0 || row.GetStoredBytes() < 0 || row.GetSupersededBytes() < 0 || row.GetMemoryBytes() < 0 ||
				row.GetSegments() < 0 {
				n.load.history.violate("shard %s says of group %s: %v", h.name, row.GetGroup(), row)
			}
		}
	}
}

// impossible returns the impossible values that a shard reports.
func impossible(row *recordv1.Shard) (bad []string) {
	for name, figure := range map[string]int64{
		"capacity": row.GetCapacityBytes(), "free": row.GetFreeBytes(), "reserve": row.GetReserveBytes(),
		"memory needed": row.GetMemoryNeedBytes(),
		"memory used":   row.GetMemoryUsedBytes(), "memory limit": row.GetMemoryLimitBytes(),
	} {
		if figure < 0 {
			bad = append(bad, fmt.Sprintf("%s: %d bytes", name, figure))
		}
	}
	if row.GetFreeBytes() > row.GetCapacityBytes() {
		bad = append(bad, fmt.Sprintf("%d bytes are free of %d", row.GetFreeBytes(), row.GetCapacityBytes()))
	}
	return bad
}

// summary returns, as text, the number of the shards' responses in each state.
func (s *statusReports) summary() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var states []string
	for _, state := range slices.Sorted(maps.Keys(s.answered)) {
		states = append(states, fmt.Sprintf("%s %d", strings.TrimPrefix(state, "SHARD_STATE_"), s.answered[state]))
	}
	return fmt.Sprintf("vital signs: looked at %d times; %s\n", s.looked, strings.Join(states, ", "))
}
