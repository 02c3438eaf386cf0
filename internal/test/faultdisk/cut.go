package faultdisk

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Keep selects which of the writes that were not flushed survive a power cut.
type Keep uint8

// These are the possible choices. KeepNone keeps no unflushed write.
const (
	KeepNone    Keep = iota
	KeepAll          // as if only the process had been killed, and not the machine
	KeepSome         // a subset of the writes, each of them complete
	KeepSectors      // a subset of the written sectors, in any order
	keeps
)

func (k Keep) String() string { return [...]string{"none", "all", "some", "sectors"}[k] }

// Survival describes which unflushed writes survive a power cut.
type Survival struct {
	Keep        Keep
	SectorBytes int64  // number of bytes that the disk writes atomically; a divisor of PageBytes
	Seed        uint64 // seed of the random choices
}

// AnySurvival returns a Survival with the given sector size. Everything else in it is random and derived from seed.
func AnySurvival(seed uint64, sectorBytes int64) Survival {
	return Survival{Keep: Keep(rand.New(rand.NewPCG(seed, 1)).IntN(int(keeps))), SectorBytes: sectorBytes, Seed: seed}
}

// Loss counts the effects of a power cut on the unflushed writes.
type Loss struct {
	Pending   int // number of writes that were not flushed
	Dropped   int // writes of which nothing survived
	Torn      int // writes of which only some sectors survived
	Reordered int // writes that survived at least in part, although an earlier write did not survive completely
}

// Add adds the counts of another Loss.
func (l *Loss) Add(other Loss) {
	l.Pending += other.Pending
	l.Dropped += other.Dropped
	l.Torn += other.Torn
	l.Reordered += other.Reordered
}

// Cutter creates the disk images that power cuts at different moments would leave. It starts from the content of a
// disk, and from a recording of the operations that followed.
type Cutter struct {
	durable pages // content of the disk at the last flush before the most recent cut
	record  []Op
	flushed int // number of operations that durable includes
}

// NewCutter creates a Cutter from the results of Device.Begin and Device.Record.
func NewCutter(before *Image, record []Op) *Cutter {
	return &Cutter{durable: slices.Clone(before.pages), record: record}
}

// Cut returns the image that the disk would have after a power cut at a certain point of the record. The argument
// done is the number of operations before the cut. It must not be less than in the previous call.
func (c *Cutter) Cut(done int, s Survival) (*Image, Loss) {
	if done > len(c.record) || done < c.flushed {
		panic(fmt.Sprintf("faultdisk: a cut at %d, after one at %d or later, of %d", done, c.flushed, len(c.record)))
	}
	for i := done - 1; i >= c.flushed; i-- {
		if c.record[i].Kind == Flush {
			for _, op := range c.record[c.flushed:i] {
				c.durable.do(op)
			}
			c.flushed = i + 1
			break
		}
	}
	left := slices.Clone(c.durable)
	return &Image{left}, left.applySurviving(c.record[c.flushed:done], s)
}

// applySurviving applies those of the pending writes that survive to a disk's content.
func (p pages) applySurviving(pending []Op, s Survival) Loss {
	random := rand.New(rand.NewPCG(s.Seed, 2))
	order := make([]int, len(pending))
	for i := range order {
		order[i] = i
	}
	share := 1.0 // probability that a write survives
	switch s.Keep {
	case KeepNone:
		share = 0
	case KeepSome, KeepSectors:
		share = []float64{0.05, 0.25, 0.5, 0.75, 0.95}[random.IntN(5)]
		if random.IntN(2) == 0 {
			random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
	}
	kept := make([]sectors, len(pending)) // for each write, which of its sectors survive
	for _, i := range order {
		op := pending[i]
		if s.Keep != KeepSectors {
			if kept[i].all = s.Keep == KeepAll || random.Float64() < share; kept[i].all {
				p.do(op)
			}
			continue
		}
		kept[i] = p.keepSectors(op, s.SectorBytes, func() bool { return random.Float64() < share })
	}
	return count(kept)
}

// sectors tells whether all sectors of a write have survived, and whether some of them have.
type sectors struct{ all, some bool }

func (p pages) keepSectors(op Op, sector int64, keep func() bool) (left sectors) {
	left.all = true
	end := op.Offset + op.Bytes
	for from := op.Offset; from < end; {
		to := min(end, (from/sector+1)*sector)
		if !keep() {
			left.all = false
		} else {
			left.some = true
			part := Op{Kind: op.Kind, Offset: from, Bytes: to - from}
			if op.Kind == Write {
				part.Data = op.Data[from-op.Offset : to-op.Offset]
			}
			p.do(part)
		}
		from = to
	}
	return left
}

func count(kept []sectors) Loss {
	loss := Loss{Pending: len(kept)}
	missed := false // whether an earlier write was lost, at least in part
	for _, k := range kept {
		switch {
		case (k.all || k.some) && missed:
			loss.Reordered++
		case !k.all && !k.some:
			loss.Dropped++
		}
		if k.some && !k.all {
			loss.Torn++
		}
		missed = missed || !k.all
	}
	return loss
}
