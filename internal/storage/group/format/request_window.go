package format

import "time"

// RequestWindow says how long the request ids of writes are remembered: for Age or for Writes further writes of the
// group, whichever ends first; but at least for AgeMin or WritesMax further writes, whichever ends first. Ages are
// measured by the monotonic clock of the process that remembers, from the time at which it applied the write, or was
// started. Changes of the machine's time do not affect them.
type RequestWindow struct {
	Age       time.Duration
	Writes    int
	AgeMin    time.Duration
	WritesMax int
}

// DefaultRequestWindow is the window that api/sheaf/record/v1/record.proto promises. AgeMin is longer than gateways and
// clients repeat a call.
var DefaultRequestWindow = RequestWindow{Age: 10 * time.Minute, Writes: 1 << 16, AgeMin: 2 * time.Minute,
	WritesMax: 1 << 20}
