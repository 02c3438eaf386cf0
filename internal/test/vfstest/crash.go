package vfstest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// SurvivalKind selects the unsynced changes that are on the disk after a power cut. Synced changes always are, except
// those that a failed Sync dropped, which never are.
type SurvivalKind uint8

// The kinds of survival.
const (
	// SurviveNone: no unsynced change survives.
	SurviveNone SurvivalKind = iota
	// SurviveAll: everything, as if the cut came late.
	SurviveAll
	// SurviveRandom: a random choice of sectors, of one size that each file had, and of changes of names.
	SurviveRandom
	// SurviveTorn: everything, but of the last write to each file only a random number of its first sectors.
	SurviveTorn
	// SurviveNames: all names and all sizes, but no data: files grew by zeros.
	SurviveNames
)

// SurvivalKinds is all of them.
var SurvivalKinds = []SurvivalKind{SurviveNone, SurviveAll, SurviveRandom, SurviveTorn, SurviveNames}

// String returns the kind as one word.
func (k SurvivalKind) String() string {
	names := []string{"none", "all", "random", "torn", "names"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("survival(%d)", uint8(k))
}

// Survival is one outcome of a power cut. The same seed on the same history makes the same disk.
type Survival struct {
	Kind SurvivalKind
	Seed uint64 // SurviveRandom and SurviveTorn
}

// String returns kind and seed, for messages of tests.
func (s Survival) String() string { return fmt.Sprintf("%s/%d", s.Kind, s.Seed) }

// CrashClone returns the disk as a power cut at this moment leaves it, in a machine that has just started: no open
// files, no locks, everything on it durable, operations counted from 0, and no crash planned. The capacity remains. The
// original is not changed and may continue. Pages are shared until one of the disks changes them, so clones are cheap.
func (m *Mem) CrashClone(s Survival) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &cloner{
		from: m, to: NewMem(), survival: s, nodes: make(map[*memNode]*memNode),
		random: rand.New(rand.NewPCG(s.Seed, 0x5eaf)),
	}
	// Some clones keep most sectors, some keep few: at one half each, a file of many sectors would never be nearly
	// whole.
	c.odds = []float64{0.1, 0.5, 0.9}[c.random.IntN(3)]
	c.to.capacity = m.capacity
	c.chooseNames()
	c.to.root = c.clone(m.root)
	// Files are in order of creation, because maps have no order and the choices must be repeatable.
	files := slices.SortedFunc(maps.Keys(c.nodes), func(a, b *memNode) int { return int(a.number - b.number) })
	for _, old := range files {
		if !old.dir {
			c.content(old, c.nodes[old])
			c.to.usedBytes += c.nodes[old].usedBytes
		}
	}
	return c.to
}

// cloner makes one clone. The lock of from is held.
type cloner struct {
	from, to *Mem
	survival Survival
	random   *rand.Rand
	odds     float64 // that a change survives
	names    map[*memNode]map[string]*memNode
	nodes    map[*memNode]*memNode
}

// chooseNames decides the names of the folders that have changes pending, for SurviveRandom.
func (c *cloner) chooseNames() {
	c.names = make(map[*memNode]map[string]*memNode)
	if c.survival.Kind != SurviveRandom {
		return
	}
	for _, p := range c.from.pending {
		if c.random.Float64() >= c.odds {
			continue
		}
		for _, change := range p.changes { // a rename survives as a whole or not at all
			if c.names[change.dir] == nil {
				c.names[change.dir] = maps.Clone(change.dir.durable)
			}
			setName(c.names[change.dir], change)
		}
	}
}

// clone makes the folders and the files; the files are still empty.
func (c *cloner) clone(old *memNode) *memNode {
	if n := c.nodes[old]; n != nil {
		return n
	}
	n := &memNode{number: old.number, dir: old.dir, mtime: old.mtime}
	c.nodes[old] = n
	c.to.nodes = max(c.to.nodes, n.number)
	if !old.dir {
		return n
	}
	names := old.durable
	switch {
	case c.survival.Kind == SurviveRandom:
		if chosen := c.names[old]; chosen != nil {
			names = chosen
		}
	case c.survival.Kind != SurviveNone:
		names = old.entries
	}
	n.entries = make(map[string]*memNode, len(names))
	for name, child := range names {
		made := c.clone(child)
		made.links++
		n.entries[name] = made
	}
	n.durable = maps.Clone(n.entries)
	return n
}

// content decides size and sectors of a file.
func (c *cloner) content(old, n *memNode) {
	n.pages = slices.Clone(old.pages)
	for _, p := range n.pages {
		if p != nil && !p.shared.Load() {
			p.shared.Store(true)
		}
	}
	size := old.size
	switch c.survival.Kind {
	case SurviveNone:
		undo(n, old.dirty, func() bool { return true })
		size = old.durableSize
	case SurviveAll:
	case SurviveRandom:
		undo(n, old.dirty, func() bool { return c.random.Float64() >= c.odds })
		size = append([]int64{old.durableSize}, old.sizes...)[c.random.IntN(len(old.sizes)+1)]
	case SurviveTorn:
		size = c.tear(old, n)
	case SurviveNames:
		undo(n, old.dirty, func() bool { return true })
	}
	undo(n, old.lost, func() bool { return true })
	n.size = size
	n.durableSize = size
	n.fit()
}

// tear undoes the end of the last write and returns the size.
func (c *cloner) tear(old, n *memNode) int64 {
	w := old.last
	if w.count == 0 {
		return old.size
	}
	whole := c.random.Int64N(w.count + 1)
	grown := c.random.IntN(2) == 0 // the size may survive without the data
	for s := w.first + whole; s < w.first+w.count; s++ {
		n.setSector(s, w.before[s-w.first])
	}
	if whole == w.count || grown {
		return old.size
	}
	return min(old.size, max(w.sizeBefore, (w.first+whole)*sectorBytes))
}

// undo restores the durable content of the sectors for which choose returns true, in order of the sectors.
func undo(n *memNode, sectors map[int64][]byte, choose func() bool) {
	for _, s := range slices.Sorted(maps.Keys(sectors)) {
		if choose() {
			n.setSector(s, sectors[s])
		}
	}
}

// fit truncates the pages to the size, zeroes the bytes behind it, and counts the space.
func (n *memNode) fit() {
	keep := (n.size + pageBytes - 1) / pageBytes
	n.pages = n.pages[:min(keep, int64(len(n.pages)))]
	if i := n.size / pageBytes; n.size%pageBytes != 0 && i < int64(len(n.pages)) && n.pages[i] != nil &&
		n.pages[i] != zeroPage {
		clear(n.writable(i).b[n.size%pageBytes:])
	}
	n.usedBytes = 0
	for _, p := range n.pages {
		if p != nil {
			n.usedBytes += pageBytes
		}
	}
}
