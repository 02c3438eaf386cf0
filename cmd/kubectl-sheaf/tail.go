package main

import (
	"bytes"
	"fmt"
)

// tail is a writer that keeps the newest bytes of a log. It holds at most twice its limit, and a part that is written
// at once.
type tail struct {
	limit int // number of bytes to keep, at least 1
	kept  []byte
	total int64 // number of bytes that were written
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.total += int64(len(p))
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.limit; over > t.limit {
		t.kept = t.kept[:copy(t.kept, t.kept[over:])]
	}
	return len(p), nil
}

// text returns the newest whole lines. If older ones are left out, the first line says how many bytes they have. A
// single line that is longer than the limit has no beginning.
func (t *tail) text() string {
	if t.total <= int64(t.limit) {
		return string(t.kept)
	}
	newest := t.kept[len(t.kept)-t.limit:]
	if _, whole, ok := bytes.Cut(newest, []byte("\n")); ok && len(whole) > 0 {
		newest = whole
	}
	return fmt.Sprintf("(the oldest %d bytes are left out)\n%s", t.total-int64(len(newest)), newest)
}
