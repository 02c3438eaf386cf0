package bubbletest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// NoiseVariable is the environment variable with the seed of the noise, a decimal uint64. If it is set, a goroutine
// that has read from a connection sometimes yields its processor or keeps it busy before it continues. As a result,
// goroutines run in orders that are rare on an idle machine. `make soak-proc` sets the variable (hack/noise.sh). The
// seed determines the delays of each connection, but not the order of the goroutines.
const NoiseVariable = "SHEAF_NOISE"

const (
	noiseYieldsMax = 8 // maximum number of times that a goroutine yields after one read
	// noiseSpinMax is the maximum real time for which a goroutine keeps its processor busy after one read.
	noiseSpinMax = 3 * time.Millisecond
)

// noise delays reads at one end of a connection. The nil noise does nothing.
type noise struct {
	mu     sync.Mutex // guards random
	random *rand.Rand
}

// noiseSeed returns the value of NoiseVariable, and whether it is set.
var noiseSeed = sync.OnceValues(func() (uint64, bool) {
	text := os.Getenv(NoiseVariable)
	if text == "" {
		return 0, false
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("%s=%q is no seed, such as 77: %v", NoiseVariable, text, err))
	}
	return seed, true
})

var noisyEnds atomic.Uint64 // number of connection ends with noise

func newNoise() *noise {
	seed, ok := noiseSeed()
	if !ok {
		return nil
	}
	return &noise{random: rand.New(rand.NewPCG(seed, noisyEnds.Add(1)))}
}

// next draws the next delay: how many times to yield, or how long to keep the processor. Half of all delays are empty.
func (n *noise) next() (yields int, spin time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch n.random.IntN(4) {
	case 0:
		return 1 + n.random.IntN(noiseYieldsMax), 0
	case 1:
		return 0, time.Duration(n.random.Int64N(int64(noiseSpinMax)))
	}
	return 0, 0
}

// delay delays the calling goroutine. It takes no virtual time, because the goroutine never waits.
func (n *noise) delay() {
	if n == nil {
		return
	}
	yields, spin := n.next()
	for range yields {
		runtime.Gosched()
	}
	if spin == 0 {
		return
	}
	for until := realNow() + spin; realNow() < until; { // the loop keeps the processor busy
	}
}

// realNow returns the monotonic clock of the machine. In a bubble, time.Now returns virtual time.
func realNow() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(fmt.Sprintf("read the monotonic clock: %v", err)) // never returns an error on Linux
	}
	return time.Duration(now.Nano())
}
