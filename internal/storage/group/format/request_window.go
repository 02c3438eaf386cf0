package format

import "time"

// RequestWindow says how long the request ids of writes are remembered: for Age or for Writes further writes of the
// group, whichever ends first; but at least for AgeMin or WritesMax further writes, whichever ends first. The age of a
// write is counted from the time at which this process applied it or, for an older write, from the start of this
// process. It is measured by the monotonic clock, so changes of the machine's time do not affect it.
type RequestWindow struct {
	Age       time.Duration
	Writes    int
	AgeMin    time.Duration
	WritesMax int
}

// DefaultRequestWindow is the window that api/sheaf/record/v1/record.proto promises. AgeMin is longer than the time
// for which gateways and clients repeat a call.
var DefaultRequestWindow = RequestWindow{Age: 10 * time.Minute, Writes: 1 << 16, AgeMin: 2 * time.Minute,
	WritesMax: 1 << 20}
