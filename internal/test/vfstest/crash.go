package vfstest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// SurvivalKind selects the unsynced changes that survive a power cut. Synced changes always survive. Changes that a
// failed Sync has dropped never survive.
type SurvivalKind uint8

// These are the kinds of survival.
const (
	// SurviveNone means that no unsynced change survives.
	SurviveNone SurvivalKind = iota
	// SurviveAll means that all changes survive, as if everything had reached the disk before the power cut.
	SurviveAll
	// SurviveRandom means that the sectors and the name changes that survive are chosen at random. The size of each file
	// is also chosen at random, from the sizes that the file had at the last sync or later.
	SurviveRandom
	// SurviveTorn means that everything survives except the end of the last write to each file. The number of sectors
	// that survive at the beginning of that write is random.
	SurviveTorn
	// SurviveNames means that all names and sizes survive, but no data. The new parts of files are zeros.
	SurviveNames
)

// SurvivalKinds are all kinds.
var SurvivalKinds = []SurvivalKind{SurviveNone, SurviveAll, SurviveRandom, SurviveTorn, SurviveNames}

// String returns the kind as one word.
func (k SurvivalKind) String() string {
	names := []string{"none", "all", "random", "torn", "names"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("survival(%d)", uint8(k))
}

// Survival selects one outcome of a power cut. If the same operations came before, the same seed always leads to the
// same disk.
type Survival struct {
	Kind SurvivalKind
	Seed uint64 // seed of the random choices, which only SurviveRandom and SurviveTorn make
}

// String returns the kind and the seed, for messages of tests.
func (s Survival) String() string { return fmt.Sprintf("%s/%d", s.Kind, s.Seed) }

// CrashClone returns the disk that a power cut at this moment would leave. The clone is in the state in which a
// machine finds it when it starts again: no file is open or locked, everything on the disk is durable, operations are
// counted from 0 again, and no crash is scheduled. The capacity stays the same. The original is not changed and may
// still be used. Clones are cheap, because disks share pages until one of them changes a page.
func (m *Mem) CrashClone(s Survival) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &cloner{
		from: m, to: NewMem(), survival: s, nodes: make(map[*memNode]*memNode),
		random: rand.New(rand.NewPCG(s.Seed, 0x5eaf)),
	}
	// Some clones keep most sectors, and others only a few. If every sector always survived with a probability of one
	// half, a file with many sectors would never survive nearly completely.
	c.odds = []float64{0.1, 0.5, 0.9}[c.random.IntN(3)]
	c.to.capacity = m.capacity
	c.chooseNames()
	c.to.root = c.clone(m.root)
	// The files are sorted by the order in which they were created, because a map has no order, and the same seed must
	// always lead to the same choices.
	files := slices.SortedFunc(maps.Keys(c.nodes), func(a, b *memNode) int { return int(a.number - b.number) })
	for _, old := range files {
		if !old.dir {
			c.content(old, c.nodes[old])
			c.to.usedBytes += c.nodes[old].usedBytes
		}
	}
	return c.to
}

// cloner makes one clone. The caller holds the lock of from.
type cloner struct {
	from, to *Mem
	survival Survival
	random   *rand.Rand
	odds     float64 // probability that a change survives
	names    map[*memNode]map[string]*memNode
	nodes    map[*memNode]*memNode
}

// chooseNames decides, for SurviveRandom, which pending changes of names survive.
func (c *cloner) chooseNames() {
	c.names = make(map[*memNode]map[string]*memNode)
	if c.survival.Kind != SurviveRandom {
		return
	}
	for _, p := range c.from.pending {
		if c.random.Float64() >= c.odds {
			continue
		}
		for _, change := range p.changes { // a rename survives completely or not at all
			if c.names[change.dir] == nil {
				c.names[change.dir] = maps.Clone(change.dir.durable)
			}
			setName(c.names[change.dir], change)
		}
	}
}

// clone creates the folders and the files, which are still empty.
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

// content sets the size and the sectors of a file.
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

// tear undoes the end of the last write to a file, and returns the size that the file then has.
func (c *cloner) tear(old, n *memNode) int64 {
	w := old.last
	if w.count == 0 {
		return old.size
	}
	whole := c.random.Int64N(w.count + 1)
	grown := c.random.IntN(2) == 0 // the file may keep its new size even though not all of the data survives
	for s := w.first + whole; s < w.first+w.count; s++ {
		n.setSector(s, w.before[s-w.first])
	}
	if whole == w.count || grown {
		return old.size
	}
	return min(old.size, max(w.sizeBefore, (w.first+whole)*sectorBytes))
}

// undo restores the durable content of the sectors for which choose returns true. It calls choose in the order of the
// sectors.
func undo(n *memNode, sectors map[int64][]byte, choose func() bool) {
	for _, s := range slices.Sorted(maps.Keys(sectors)) {
		if choose() {
			n.setSector(s, sectors[s])
		}
	}
}

// fit truncates the pages to the size, zeroes the bytes beyond the end, and updates the used space.
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
