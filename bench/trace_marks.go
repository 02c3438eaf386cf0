package bench

import (
	"fmt"
	"os"
)

// traceMark writes a line between the events of the kernel's trace, so that requests of a device can be told by the
// start that made them. hack/trace-starts.sh reads it; without a mounted tracefs, nothing is written.
func traceMark(text string) {
	f, err := os.OpenFile("/sys/kernel/tracing/trace_marker", os.O_WRONLY, 0)
	if err != nil {
		return // nobody traces
	}
	_, _ = f.WriteString(text)
	_ = f.Close()
}

// traced names the case in a mark.
func (s *startBench) traced() string { return fmt.Sprintf(", %s %d KB", s.residency, s.size>>10) }
