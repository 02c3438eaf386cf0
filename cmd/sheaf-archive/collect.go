package main

import "runtime/debug"

// These are lower values of GOGC than the default. A source holds up to 80 MiB of the groups that it sends, and an
// archiver two segments of 32 MiB, in large blocks without pointers. So collecting garbage more often costs little, and
// saves memory. Of an archiver, the buffers of the bucket's library are garbage after each object.
const (
	sourceGarbagePercent   = 50
	archiverGarbagePercent = 25
)

// garbageBytesMin is how much garbage at least there is when it is collected. With a percentage alone, a process that
// holds 10 MiB would collect garbage after each 2.5 MiB, and spend most of its processor time on that, because the
// memory that a collection frees is given to the kernel and taken back again.
const garbageBytesMin = 16 << 20

// ballast is memory that is allocated and never touched, so the kernel provides none for it. The garbage collector
// counts it as memory in use, of which the garbage may be a percentage.
var ballast []byte

// collectGarbage sets the percentage of garbage at which it is collected, but not below garbageBytesMin.
func collectGarbage(percent int) {
	if ballast == nil {
		ballast = make([]byte, garbageBytesMin*100/percent)
	}
	debug.SetGCPercent(percent)
}
