package replicas

import (
	"sync"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
)

// The rate of a copy is measured over the last rateSpan, with a sample every rateStep.
const (
	rateSpan = 10 * time.Second
	rateStep = 500 * time.Millisecond
)

// Copying is the progress of a replica that is fetching its group's files. It is safe for concurrent use.
type Copying struct {
	now func() time.Time

	mu          sync.Mutex
	from        string // shard that sends the files; empty while the replica waits for its turn
	total, done int64
	samples     []sample // samples of the current attempt, oldest first
}

// sample is the number of bytes present at a certain time.
type sample struct {
	at   time.Time
	done int64
}

// Begin records that a shard begins to send files, and how many bytes they have in total. It starts to measure the
// rate.
func (c *Copying) Begin(from string, total int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from, c.total, c.samples = from, total, nil
}

// Waits records that no bytes are being received at present. The bytes received so far are still reported.
func (c *Copying) Waits() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from, c.samples = "", nil
}

// Have records how many bytes are present. Bytes from earlier attempts do not count towards the rate.
func (c *Copying) Have(done int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.samples {
		c.samples[i].done += done - c.done
	}
	c.done = done
	c.sample()
}

// Add counts received bytes.
func (c *Copying) Add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += n
	c.sample()
}

// sample takes a sample if one is due. The caller holds mu.
func (c *Copying) sample() {
	now := c.now()
	if n := len(c.samples); n > 0 && now.Sub(c.samples[n-1].at) < rateStep {
		return
	}
	c.samples = append(c.samples, sample{now, c.done})
	for len(c.samples) > 2 && now.Sub(c.samples[1].at) >= rateSpan {
		c.samples = c.samples[1:]
	}
}

// ETA returns the time until all files will be here at the present rate, or 0 if it is not known.
func (c *Copying) ETA() time.Duration {
	var p recordv1.Copy
	c.Describe(&p)
	return time.Duration(p.GetEtaSeconds() * float64(time.Second))
}

// Describe fills in the progress as far as it is known.
func (c *Copying) Describe(p *recordv1.Copy) {
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
