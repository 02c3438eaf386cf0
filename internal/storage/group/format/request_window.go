package format

import "time"

// RequestWindow says how long the request ids of writes are remembered: for Age and for Writes further writes of the
// group, whichever ends first, but in any case for AgeMin or WritesMax further writes, whichever ends first. Ages are
// measured by the clock of the process that remembers, which no change of the machine's time touches, from when it
// applied the write, or was started.
type RequestWindow struct {
	Age       time.Duration
	Writes    int
	AgeMin    time.Duration
	WritesMax int
}

// DefaultRequestWindow is what api/sheaf/record/v1/record.proto promises. AgeMin is longer than gateways and clients
// repeat a call.
var DefaultRequestWindow = RequestWindow{Age: 10 * time.Minute, Writes: 1 << 16, AgeMin: 2 * time.Minute,
	WritesMax: 1 << 20}
