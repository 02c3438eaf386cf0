package shard

import (
	"cmp"
	"slices"
	"sync"
	"time"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// The rate of a copy is that of the last rateSpan, looked at each rateStep.
const (
	rateSpan = 10 * time.Second
	rateStep = 500 * time.Millisecond
)

// copying is how far a replica is that takes the files of its group over. Safe for concurrent use.
type copying struct {
	now func() time.Time

	mu          sync.Mutex
	from        string // shard; empty: it waits for its turn
	total, done int64
	samples     []sample // of the attempt under way, oldest first
}

// sample is how many bytes were there at a time.
type sample struct {
	at   time.Time
	done int64
}

// begin notes that files come from a shard now, so many bytes in all, and counts the rate anew.
func (c *copying) begin(from string, total int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from, c.total, c.samples = from, total, nil
}

// waits notes that nothing comes for now. What is here stays.
func (c *copying) waits() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from, c.samples = "", nil
}

// have notes how many bytes are here, some of them from earlier attempts: those do not count for the rate.
func (c *copying) have(done int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.samples {
		c.samples[i].done += done - c.done
	}
	c.done = done
	c.sample()
}

// add counts bytes that have come.
func (c *copying) add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += n
	c.sample()
}

// sample is called with mu held.
func (c *copying) sample() {
	now := c.now()
	if n := len(c.samples); n > 0 && now.Sub(c.samples[n-1].at) < rateStep {
		return
	}
	c.samples = append(c.samples, sample{now, c.done})
	for len(c.samples) > 2 && now.Sub(c.samples[1].at) >= rateSpan {
		c.samples = c.samples[1:]
	}
}

// describe fills in what is known.
func (c *copying) describe(p *recordv1.Copy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.Phase, p.From = recordv1.CopyPhase_COPY_PHASE_WAITING, c.from
	p.BytesTotal, p.BytesDone = c.total, min(c.done, c.total)
	if c.from == "" {
		return
	}
	p.Phase = recordv1.CopyPhase_COPY_PHASE_FILES
	if len(c.samples) == 0 {
		return
	}
	first := c.samples[0]
	if took := c.now().Sub(first.at).Seconds(); took > 0 {
		p.BytesPerSecond = max(0, float64(c.done-first.done)/took)
	}
	if p.GetBytesPerSecond() > 0 {
		eta := float64(max(0, c.total-c.done)) / p.GetBytesPerSecond()
		p.EtaSeconds = &eta
	}
}

// countedFile counts what is written to a file that comes.
type countedFile struct {
	peer.SinkFile
	copying *copying
}

func (f countedFile) Write(b []byte) (int, error) {
	n, err := f.SinkFile.Write(b)
	f.copying.add(int64(n))
	return n, err
}

// haveBytes tells how many bytes are here while these files are missing: blobs are known only when all segments are
// here.
func haveBytes(missing []transfer.File, segments, total int64) (have int64) {
	have = total
	if slices.ContainsFunc(missing, func(f transfer.File) bool { return f.Kind == transfer.SegmentFile }) {
		have = segments
	}
	for _, f := range missing {
		have -= f.Bytes - f.Have
	}
	return max(0, have)
}

// copyTo describes how the replica comes to be on the shard of this name; nil where it is here. Called with Shard.mu
// held.
func (g *groupReplica) copyTo(shard string) *recordv1.Copy {
	p := &recordv1.Copy{Shard: shard}
	if c := g.copying.Load(); c != nil {
		c.describe(p)
		return p
	}
	if g.joining() {
		p.Phase = recordv1.CopyPhase_COPY_PHASE_WAITING
		return p
	}
	return nil
}

// copies describes the copies that are being made on this shard, by group.
func (s *Shard) copies() []*recordv1.Move {
	var out []*recordv1.Move
	add := func(g *groupReplica, c *recordv1.Copy) {
		out = append(out, &recordv1.Move{
			Group: g.Name, To: []string{s.cfg.Name}, Running: true, Bytes: c.GetBytesTotal(), BytesDone: c.GetBytesDone(),
			BytesPerSecond: c.GetBytesPerSecond(), EtaSeconds: c.EtaSeconds, Phase: phaseOf(c.GetPhase()),
			Copies: []*recordv1.Copy{c},
		})
	}
	var serving []*groupReplica
	s.mu.Lock()
	for _, g := range s.groups {
		switch c := g.copyTo(s.cfg.Name); {
		case g.Name == "":
		case c != nil:
			add(g, c)
		default:
			serving = append(serving, g)
		}
	}
	s.mu.Unlock()
	for _, g := range serving {
		if sv := g.served.Load(); sv != nil && sv.replica.Status().Learner {
			bytes := sv.log.Stats().StoredBytes
			add(g, &recordv1.Copy{Shard: s.cfg.Name, Phase: recordv1.CopyPhase_COPY_PHASE_ENTRIES, BytesTotal: bytes,
				BytesDone: bytes})
		}
	}
	slices.SortFunc(out, func(a, b *recordv1.Move) int { return cmp.Compare(a.GetGroup(), b.GetGroup()) })
	return out
}

// phaseOf is the phase of a move whose one copy is in this one.
func phaseOf(p recordv1.CopyPhase) recordv1.MovePhase {
	switch p {
	case recordv1.CopyPhase_COPY_PHASE_WAITING:
		return recordv1.MovePhase_MOVE_PHASE_WAITING
	case recordv1.CopyPhase_COPY_PHASE_FILES:
		return recordv1.MovePhase_MOVE_PHASE_COPYING
	case recordv1.CopyPhase_COPY_PHASE_ENTRIES:
		return recordv1.MovePhase_MOVE_PHASE_CATCHING_UP
	default:
		return recordv1.MovePhase_MOVE_PHASE_SWITCHING
	}
}
