package chaos

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// verb is the kind of a call.
type verb uint8

const (
	get verb = iota
	put
	del
)

func (v verb) String() string { return [...]string{"get", "put", "delete"}[v] }

// refusal is the reason why nothing was written.
type refusal uint8

const (
	none refusal = iota
	exists
	mismatch
)

// unknownEnd is the end time of a call whose outcome is unknown. Such a call may take effect at any later time, or not
// at all.
const unknownEnd = int64(math.MaxInt64)

// operation is one client's call on one record, with its observed outcome. A value identifies a put, because no two
// puts have the same value. The value 0 stands for no record.
type operation struct {
	worker     int
	verb       verb
	key        int64
	value      uint64 // for a put, the value to write
	ifVersion  uint64 // required version of the record; 0 if the call does not require one
	ifAbsent   bool
	begin, end int64 // nanoseconds since the start; end is never if the outcome is unknown

	version uint64  // version that was read or written, or the one that a refusal named as the newest; 0 means no record
	seen    uint64  // for a get, the value that was read; 0 means no record
	refused refusal // reason why nothing was written
	existed bool    // for a delete, whether there was a record
}

func (o operation) String() string {
	until := "never answered"
	if o.end != unknownEnd {
		until = time.Duration(o.end).String()
	}
	return fmt.Sprintf(
		"worker %d %v key %d value %x if-version %d if-absent %v [%v, %s] -> version %d seen %x refused %d existed %v",
		o.worker, o.verb, o.key, o.value, o.ifVersion, o.ifAbsent, time.Duration(o.begin), until, o.version, o.seen,
		o.refused, o.existed)
}

// record is the state of one record. Its version is 0 if there is no record. It is also 0 if the version is unknown,
// because the put that wrote it was never answered.
type record struct {
	value   uint64
	version uint64
	floor   uint64 // any version that is written later is greater than this
}

// matches reports whether the given version may be the record's newest one. It also returns the record with this
// version filled in, because the version may have been unknown until now.
func (r record) matches(version uint64) (bool, record) {
	switch {
	case version == 0 || r.value == 0:
		return (version == 0) == (r.value == 0), r
	case r.version != 0:
		return r.version == version, r
	case version <= r.floor:
		return false, r
	}
	r.version, r.floor = version, version
	return true, r
}

// model is the porcupine model of one record.
var model = porcupine.Model{
	Init: func() any { return record{} },
	Step: func(state, input, _ any) (bool, any) {
		ok, next := step(state.(record), input.(operation))
		return ok, next
	},
	DescribeOperation: func(input, _ any) string { return input.(operation).String() },
}

// step reports whether an operation on the record may have had the observed outcome, and returns the record after the
// operation.
func step(r record, o operation) (bool, record) {
	if o.verb == get {
		if o.seen != r.value {
			return false, r
		}
		return r.matches(o.version)
	}
	if o.end == unknownEnd {
		return true, r.afterUnanswered(o)
	}
	if o.refused != none {
		ok, known := r.matches(o.version)
		wrong := o.refused == exists && r.value != 0 || o.refused == mismatch && o.version != o.ifVersion
		return ok && wrong, known
	}
	if o.ifAbsent && r.value != 0 {
		return false, r
	}
	if o.ifVersion != 0 {
		ok, known := r.matches(o.ifVersion)
		if !ok {
			return false, r
		}
		r = known
	}
	if o.verb == del {
		if o.existed != (r.value != 0) {
			return false, r
		}
		if !o.existed {
			return o.version == 0, r
		}
	}
	if o.version <= r.floor {
		return false, r
	}
	if o.verb == del {
		return true, record{floor: o.version}
	}
	return true, record{value: o.value, version: o.version, floor: o.version}
}

// afterUnanswered returns the record after a call without a response has taken effect. Workers give up a call only if
// it is unconditional. So the record's new content is certain, and only its version is unknown.
func (r record) afterUnanswered(o operation) record {
	if o.verb == del {
		return record{floor: r.floor}
	}
	return record{value: o.value, floor: r.floor}
}

// history is everything that clients saw.
type history struct {
	mu         sync.Mutex
	operations []operation
	wrong      []string // violations that no order of the calls can explain, such as wrong bytes and unexpected errors
	leftOut    map[int64]bool
}

// exclude excludes a record from the judgement. This is necessary if the run ends before a conditional write on the
// record was answered, because the checker cannot handle such a write.
func (h *history) exclude(key int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leftOut == nil {
		h.leftOut = map[int64]bool{}
	}
	h.leftOut[key] = true
}

func (h *history) add(o operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, o)
}

func (h *history) violate(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
}

func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.operations)
}

func (h *history) violations() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.wrong)
}

// judge checks whether the history is possible. For each record, there must be one order of all calls that is
// consistent with every response.
func (h *history) judge(patience time.Duration) []string {
	h.mu.Lock()
	violations := slices.Clone(h.wrong)
	byKey := map[int64][]operation{}
	for _, o := range h.operations {
		if !h.leftOut[o.key] {
			byKey[o.key] = append(byKey[o.key], o)
		}
	}
	h.mu.Unlock()
	for key, all := range byKey {
		if result := linearizable(all, patience); result != porcupine.Ok {
			violations = append(violations, fmt.Sprintf("record %d: its %d calls are not linearizable (%v):\n%s", key, len(all),
				result, shortestImpossible(all)))
		}
	}
	return violations
}

func linearizable(all []operation, patience time.Duration) porcupine.CheckResult {
	input := make([]porcupine.Operation, len(all))
	for i, o := range all {
		input[i] = porcupine.Operation{ClientId: o.worker, Input: o, Call: o.begin, Return: o.end}
	}
	return porcupine.CheckOperationsTimeout(model, input, patience)
}

// shortestImpossible finds the shortest impossible prefix of a history, and returns the last calls in it, one per line.
// The last line is the call that makes the prefix impossible.
func shortestImpossible(all []operation) string {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b operation) int { return int(min(1, max(-1, a.end-b.end))) })
	low, high := 0, len(all)
	for low < high {
		middle := (low + high) / 2
		if linearizable(firstFinished(all, middle), 10*time.Second) == porcupine.Ok {
			low = middle + 1
		} else {
			high = middle
		}
	}
	text := ""
	for _, o := range all[max(0, low-15):min(low, len(all))] {
		text += "  " + o.String() + "\n"
	}
	return text
}

// firstFinished returns the n calls that finished first. It also returns unconditional writes that had begun by then
// and finished later, because they may already have taken effect.
func firstFinished(byEnd []operation, n int) []operation {
	out := slices.Clone(byEnd[:n])
	if n == 0 {
		return out
	}
	last := byEnd[n-1].end
	for _, o := range byEnd[n:] {
		plain := o.verb != get && o.refused == none && o.ifVersion == 0 && !o.ifAbsent
		if o.begin < last && plain {
			o.end = unknownEnd
			out = append(out, o)
		}
	}
	return out
}
