package bench

import (
	"fmt"
	"os"
)

// traceMark writes a line into the kernel's trace. hack/trace-starts.sh uses these lines to attribute each request to
// a device to the start that caused it. If tracefs is not mounted, traceMark does nothing.
func traceMark(text string) {
	f, err := os.OpenFile("/sys/kernel/tracing/trace_marker", os.O_WRONLY, 0)
	if err != nil {
		return // tracing is not available
	}
	_, _ = f.WriteString(text)
	_ = f.Close()
}

// traceLabel returns the words that identify the case in a trace mark.
func (s *startBench) traceLabel() string { return fmt.Sprintf(", %s %d KB", s.residency, s.size>>10) }
