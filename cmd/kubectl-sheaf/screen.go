package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/finding"
)

// screen formats a snapshot as lines of text that are at most width columns wide. Only commands may be wider, because
// they must stay on one line to be copied.
type screen struct {
	*snapshot
	width int
	out   strings.Builder
}

// show returns the whole screen.
func (s *snapshot) show(width int, found []finding.Finding) string {
	c := &screen{snapshot: s, width: width}
	c.head()
	c.shards()
	c.domains()
	c.moves()
	c.etcd()
	c.gateways()
	c.disks()
	c.findings(found)
	return c.out.String()
}

// say writes a prefix and a text. Long texts are wrapped, and their further lines are aligned with the first one.
func (c *screen) say(prefix, format string, args ...any) {
	for n, line := range wrap(fmt.Sprintf(format, args...), c.width-len(prefix)) {
		if n > 0 {
			prefix = strings.Repeat(" ", len(prefix))
		}
		c.out.WriteString(strings.TrimRight(prefix+line, " ") + "\n")
	}
}

// section starts a section. It writes the title, followed by a text on the same line.
func (c *screen) section(title, format string, args ...any) {
	c.out.WriteString("\n")
	c.say(title+"  ", format, args...)
}

func (c *screen) table(t table) {
	if len(t.rows) == 0 {
		return
	}
	for _, line := range t.lines(c.width) {
		c.out.WriteString(line + "\n")
	}
}

// head writes the name and kind of the store, and says whether the store serves.
func (c *screen) head() {
	status, spec := c.Store.Status, c.Store.Spec
	ready := "no condition yet"
	if r := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady); r != nil {
		ready = "Ready"
		if r.Status != "True" {
			ready = fmt.Sprintf("not Ready, %s: %s", r.Reason, shorten(r.Message, 200))
		}
	}
	c.say("RecordStore ", "%s/%s: %s", c.Store.Namespace, c.Store.Name, ready)
	g := status.Groups
	c.say("groups    ", "%d of %d serve%s; %s routing, %s", g.Serving, g.Total, groupWords(g), spec.Groups.Routing,
		copiesWords(spec.Replication))
	c.say("records   ", "%s, %s stored", cli.FormatCount(status.Records), cli.FormatBytes(status.StoredBytes))
	c.say("gateway   ", "%s", cmp.Or(status.Address, "none yet"))
	c.say("image     ", "%s", cmp.Or(status.Image, spec.Image, "the operator's"))
	for i := range c.Archives {
		c.say("archive   ", "%s, in %s", c.ArchiveSentence(&c.Archives[i]), c.Archives[i].Spec.URL)
	}
	if words := c.RestoreSentence(); words != "" {
		c.say("restore   ", "%s", words)
	}
	if status.Load != "" {
		c.say("load      ", "%s", status.Load)
	}
}

func copiesWords(r v1alpha1.Replication) string {
	if r.Copies <= 1 {
		return "1 copy"
	}
	return fmt.Sprintf("%d copies, each in a %s of its own", r.Copies, cmp.Or(r.TopologyKey, corev1.LabelHostname))
}

// groupWords lists how many groups are loading, degraded, damaged, lost or moving.
func groupWords(g v1alpha1.GroupCounts) string {
	words := ""
	for _, n := range []struct {
		count int32
		name  string
	}{{g.Loading, "loading"}, {g.Degraded, "degraded"}, {g.Damaged, "damaged"}, {g.DataLost, "lost"},
		{g.Moving, "moving"}} {
		if n.count > 0 {
			words += fmt.Sprintf(", %d %s", n.count, n.name)
		}
	}
	return words
}

// shards writes the shards of all pools by failure domain.
func (c *screen) shards() {
	asked := int32(0)
	for i := range c.Pools {
		asked += wantedShards(&c.Pools[i])
	}
	var states []string
	for i := range c.Pools {
		if state := c.Pools[i].Spec.State; state != "" && state != v1alpha1.PoolActive {
			states = append(states, fmt.Sprintf("pool %s is %s", c.Pools[i].Name, state))
		}
	}
	c.section("SHARDS", "%s", strings.Join(append([]string{fmt.Sprintf("%d of %d serve", c.Store.Status.Shards.Serving,
		asked)}, states...), ", "))
	t := table{columns: []column{
		{name: "DOMAIN"}, {name: "SHARD"}, {name: "STATE"}, {name: "GROUPS", right: true},
		{name: "LEADS", drop: 2, right: true}, {name: "RECORDS", drop: 5, right: true},
		{name: "STORED", drop: 3, right: true}, {name: "FREE", drop: 1, right: true},
		{name: "LOAD", drop: 4}, {name: "MEMORY", drop: 6, right: true}, {name: "NODE", drop: 7}, {name: "VERSION", drop: 8},
	}}
	for _, r := range c.rows() {
		leads := ""
		if l := c.liveShard(r.Name); l != nil {
			leads = strconv.Itoa(int(l.GetLeaders()))
		}
		free := ""
		if r.Volume != nil && r.Volume.CapacityBytes > 0 {
			free = fmt.Sprintf("%s of %s", cli.FormatBytes(r.Volume.FreeBytes), cli.FormatBytes(r.Volume.CapacityBytes))
		}
		memory := ""
		if r.MemoryLimitBytes > 0 {
			used := r.MemoryNeedBytes // the need is computed when a shard starts, so it is 0 if the shard was new then
			// If the memory limit of a shard is too small, the screen shows the need and not the used memory, because the
			// shard uses only a part of what it needs.
			if l := c.liveShard(r.Name); l.GetAlive() && r.State != v1alpha1.ShardMemoryTooSmall {
				used = l.GetMemoryUsedBytes()
			}
			memory = fmt.Sprintf("%s of %s", cli.FormatBytes(used), cli.FormatBytes(r.MemoryLimitBytes))
		}
		load := ""
		if r.State == v1alpha1.ShardLoading {
			load = r.Load
		}
		t.add(r.domain, r.Name, string(r.State), strconv.Itoa(int(r.Groups)), leads, cli.FormatCount(r.Records),
			cli.FormatBytes(r.StoredBytes), free, load, memory, r.Node, r.Version)
	}
	c.table(t)
}

// shardRow is a shard with its failure domain.
type shardRow struct {
	v1alpha1.ShardStatus
	domain string
}

// rows returns all shards, sorted by failure domain and name.
func (c *screen) rows() []shardRow {
	var rows []shardRow
	for i := range c.Pools {
		for _, s := range v1alpha1.ShardsOf(&c.Pools[i], c.Shards) {
			rows = append(rows, shardRow{s, c.domain(s)})
		}
	}
	slices.SortFunc(rows, func(a, b shardRow) int {
		return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.Name, b.Name))
	})
	return rows
}

// domain returns the failure domain of a shard as a gateway reports it. If there is no report, it returns the domain
// of the shard's node.
func (c *screen) domain(s v1alpha1.ShardStatus) string {
	if l := c.liveShard(s.Name); l != nil && l.GetDomain() != "" {
		return l.GetDomain()
	}
	if key := c.Store.Spec.Replication.TopologyKey; key != "" && key != corev1.LabelHostname {
		for i := range c.Nodes {
			if c.Nodes[i].Name == s.Node && c.Nodes[i].Labels[key] != "" {
				return c.Nodes[i].Labels[key]
			}
		}
	}
	return cmp.Or(s.Node, "-")
}

func (c *screen) liveShard(name string) *recordv1.Shard {
	for _, s := range c.Live.Shards {
		if s.GetName() == name {
			return s
		}
	}
	return nil
}

// domains writes how many shards and copies are in each failure domain.
func (c *screen) domains() {
	type sum struct {
		shards, copies, leads int
		stored                int64
	}
	by := map[string]*sum{}
	of := map[string]string{}
	for _, r := range c.rows() {
		if by[r.domain] == nil {
			by[r.domain] = &sum{}
		}
		of[r.Name] = r.domain
		d := by[r.domain]
		d.shards++
		d.stored += r.StoredBytes
		if c.Live.Err != nil {
			d.copies += int(r.Groups)
		}
	}
	for _, g := range c.Live.Groups {
		d := by[of[g.GetShard()]]
		if d == nil || g.GetRole() == recordv1.MemberRole_MEMBER_ROLE_REMOVED {
			continue
		}
		d.copies++
		if g.GetLeader() {
			d.leads++
		}
	}
	if len(by) == 0 {
		return
	}
	c.section("COPIES BY DOMAIN", "%s", redundantWords(c.Store))
	t := table{columns: []column{{name: "DOMAIN"}, {name: "SHARDS", right: true}, {name: "COPIES", right: true},
		{name: "LEADS", right: true}, {name: "STORED", right: true}}}
	for _, name := range cli.SortedKeys(by) {
		d := by[name]
		leads := "?"
		if c.Live.Err == nil {
			leads = strconv.Itoa(d.leads)
		}
		t.add(name, strconv.Itoa(d.shards), strconv.Itoa(d.copies), leads, cli.FormatBytes(d.stored))
	}
	c.table(t)
}

func redundantWords(store *v1alpha1.RecordStore) string {
	if store.Spec.Replication.Copies <= 1 {
		return "a single copy of each group"
	}
	switch r := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionRedundant); {
	case r == nil:
		return "not known yet whether every group has all its copies"
	case r.Status == "True":
		return "every group has all its copies, in different domains"
	default:
		return "not every group has all its copies, in different domains: " + r.Reason
	}
}

// movesShown is the maximum number of moves in the table. If there are more moves, the screen shows only how many.
const movesShown = 8

// moves writes the running moves with their remaining time, and then the moves that wait.
func (c *screen) moves() {
	if c.Live.Err != nil {
		c.section("MOVES", "not known, as no gateway was asked: %v", c.Live.Err)
		return
	}
	c.section("MOVES", "%s", cli.MovesWords(c.Live.Moves))
	c.table(movesTable(c.Live.Moves, movesShown))
}

// movesTable returns a table of the first moves. The argument most is the maximum number of rows.
func movesTable(moves []*recordv1.Move, most int) table {
	t := table{columns: []column{
		{name: "GROUP"}, {name: "STATE"}, {name: "FROM", drop: 2}, {name: "TO", drop: 1}, {name: "DONE", right: true},
		{name: "BYTES", drop: 3, right: true},
		{name: "RATE", drop: 4, right: true}, {name: "ETA", right: true}, {name: "REASON", drop: 5},
	}}
	for _, m := range moves[:min(most, len(moves))] {
		done, rate, eta := cli.MoveFigures(m)
		t.add(m.GetGroup(), cli.MoveState(m), strings.Join(m.GetFrom(), ","), strings.Join(m.GetTo(), ","), done,
			cli.FormatBytes(m.GetBytes()), rate, eta, m.GetReason())
	}
	return t
}
