package shard

import (
	"slices"
	"sync"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// The rate of a copy is measured over the last rateSpan, with a sample every rateStep.
const (
	rateSpan = 10 * time.Second
	rateStep = 500 * time.Millisecond
)

// copying is the progress of a replica that is fetching the files of its group. Safe for concurrent use.
type copying struct {
	now func() time.Time

	mu          sync.Mutex
	from        string // shard that sends the files; empty: the replica waits for its turn
	total, done int64
	samples     []sample // of the current attempt, oldest first
}

// sample is the number of bytes present at a certain time.
type sample struct {
	at   time.Time
	done int64
}

// begin records that a shard begins to send files of total bytes in all, and measures the rate from now on.
func (c *copying) begin(from string, total int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from, c.total, c.samples = from, total, nil
}

// waits records that nothing is being received for now. The received bytes still count.
func (c *copying) waits() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from, c.samples = "", nil
}

// have notes how many bytes are present. Bytes from earlier attempts do not count for the rate.
func (c *copying) have(done int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.samples {
		c.samples[i].done += done - c.done
	}
	c.done = done
	c.sample()
}

// add counts received bytes.
func (c *copying) add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += n
	c.sample()
}

// sample takes a sample if one is due. Called with mu held.
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

// describe fills in the known progress.
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

// countedFile counts the bytes written to a file that is being received.
type countedFile struct {
	peer.SinkFile
	copying *copying
}

func (f countedFile) Write(b []byte) (int, error) {
	n, err := f.SinkFile.Write(b)
	f.copying.add(int64(n))
	return n, err
}

// haveBytes returns how many bytes are present while the given files are missing. Blobs are known only after all
// segments are present.
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

// copyTo describes the progress of copying the replica to the named shard; nil if it is complete. Called with Shard.mu
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

// copies describes the copies that are being created on this shard, sorted by group.
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
	slices.SortFunc(out, func(a, b *recordv1.Move) int { return placement.CompareGroups(a.GetGroup(), b.GetGroup()) })
	return out
}

// phaseOf returns the phase of a move with a single copy in the given phase.
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
