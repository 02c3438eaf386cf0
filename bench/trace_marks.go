package bench

import (
	"fmt"
	"os"
)

// traceMark writes a line into the kernel's trace, so that each request to a device can be attributed to the start that
// caused it. hack/trace-starts.sh reads these lines. Without a mounted tracefs, traceMark does nothing.
func traceMark(text string) {
	f, err := os.OpenFile("/sys/kernel/tracing/trace_marker", os.O_WRONLY, 0)
	if err != nil {
		return // tracing is not available
	}
	_, _ = f.WriteString(text)
	_ = f.Close()
}

// traced returns the words that name the case in a mark.
func (s *startBench) traced() string { return fmt.Sprintf(", %s %d KB", s.residency, s.size>>10) }
