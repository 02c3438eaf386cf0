package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// A process that holds little memory does not collect garbage after each MB.
func TestLittleGarbageIsNotCollected(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	defer func() { ballast = nil }()
	for _, percent := range []int{archiverGarbagePercent, sourceGarbagePercent} {
		ballast = nil
		collectGarbage(percent)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if garbage := int64(m.NextGC) - int64(m.HeapAlloc); garbage < garbageBytesMin*9/10 {
			t.Errorf("with %d %%, garbage is collected after %d bytes", percent, garbage)
		}
	}
}
