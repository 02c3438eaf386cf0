package powercut

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// write is a put or a delete of one record, with the outcome that its caller observed.
type write struct {
	value  uint64 // number from which the data is derived (see the function data); 0 for a delete
	issued int    // number of disk operations before the write began
	acked  int    // number of disk operations when the write was acknowledged; never if it was not acknowledged
}

const never = -1

// ledger holds all writes that callers have requested, and when each was acknowledged. The writes of one record are
// in order.
type ledger struct {
	mu     sync.Mutex
	writes map[int64][]write
	acks   []int // positions of acknowledgements
}

// begin records the start of a write. The caller retries the write until it succeeds, and then calls end().
func (l *ledger) begin(id int64, value uint64, at int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes[id] = append(l.writes[id], write{value: value, issued: at, acked: never})
}

// end records that a record's newest write was acknowledged.
func (l *ledger) end(id int64, at int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.writes[id]
	of[len(of)-1].acked = at
	l.acks = append(l.acks, at)
}

// newestValue returns the value that the record's newest write has written. Only the worker that writes this record may
// call it.
func (l *ledger) newestValue(id int64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.writes[id]
	if len(of) == 0 {
		return 0
	}
	return of[len(of)-1].value
}

// check compares the records that were found after a power cut with the writes before it. Every write that was
// acknowledged before the cut must have survived, and every version that is found must come from a write that had
// begun before the cut.
func (l *ledger) check(cut int, found map[int64]uint64) error {
	var wrong []string
	for id, value := range found {
		if len(l.writes[id]) == 0 {
			wrong = append(wrong, fmt.Sprintf("record %d has value %d, and was never written", id, value))
		}
	}
	for id, of := range l.writes {
		may := []uint64{0} // the record does not exist before its first write
		for _, w := range of {
			switch {
			case w.acked != never && w.acked <= cut:
				may = []uint64{w.value}
			case w.issued <= cut:
				may = append(may, w.value)
			}
		}
		if !slices.Contains(may, found[id]) {
			wrong = append(wrong, fmt.Sprintf("record %d has value %d, and may have %d (0: none) of %+v", id, found[id], may,
				of))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return fmt.Errorf("%d records are wrong: %s", len(wrong), strings.Join(wrong[:min(len(wrong), 5)], "; "))
}

// sizes are the data sizes, in bytes: small data, one block, several blocks, and a blob.
var sizes = []int{20, 300, 4096, 40_000}

const (
	largeBytes = 1<<20 + 100_000
	largeOneOf = 150
)

// data returns the data that belongs to a value: the value itself, and bytes that depend only on the value.
func data(value uint64) []byte {
	size := sizes[value*2654435761>>7%uint64(len(sizes))]
	if value%largeOneOf == 0 {
		size = largeBytes
	}
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, size), value)
	for word := value; len(b) < size; {
		word = word*6364136223846793005 + 1442695040888963407
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return b[:max(size, 8)]
}

// valueOf returns the value to which data belongs. All bytes must be those that data() returns for this value.
func valueOf(b []byte) (uint64, error) {
	if len(b) < 8 {
		return 0, fmt.Errorf("%d bytes that nobody wrote", len(b))
	}
	value := binary.LittleEndian.Uint64(b)
	if want := data(value); value == 0 || !slices.Equal(b, want) {
		return 0, fmt.Errorf("%d bytes that nobody wrote, which begin like value %d", len(b), value)
	}
	return value, nil
}
