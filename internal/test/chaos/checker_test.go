package chaos

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// possibleHistory generates a history that could really have happened: calls of several workers on one record. The
// calls take effect in the order in which they are generated.
func possibleHistory(seed uint64, n int) []operation {
	random := rand.New(rand.NewPCG(seed, 1))
	var all []operation
	var now record
	for i := range n {
		at := int64(i+1) * 100
		o := operation{worker: i % 5, key: 1, begin: at - random.Int64N(300), end: at + random.Int64N(300)}
		o.begin = max(o.begin, 0)
		version := uint64(i + 1)
		switch random.IntN(6) {
		case 0, 1:
			o.verb, o.seen, o.version = get, now.value, now.version
		case 2:
			o.verb, o.existed = del, now.value != 0
			if o.existed {
				o.version, now = version, record{floor: version}
			}
		case 3:
			o.verb, o.value, o.ifAbsent = put, version, true
			if now.value != 0 {
				o.refused, o.version = exists, now.version
			} else {
				o.version, now = version, record{value: version, version: version, floor: version}
			}
		case 4:
			o.verb, o.value, o.ifVersion = put, version, max(1, now.version)
			if now.value == 0 {
				o.refused = mismatch
			} else {
				o.version, now = version, record{value: version, version: version, floor: version}
			}
		default:
			o.verb, o.value, o.version = put, version, version
			now = record{value: version, version: version, floor: version}
		}
		all = append(all, o)
	}
	return all
}

// TestCheckerAcceptsPossibleHistories checks that the checker accepts every history that could really have happened,
// even if some of its calls have no response.
func TestCheckerAcceptsPossibleHistories(t *testing.T) {
	for seed := range uint64(50) {
		all := possibleHistory(seed, 150)
		if got := linearizable(all, time.Minute); got != porcupine.Ok {
			t.Fatalf("seed %d: %v\n%s", seed, got, shortestImpossible(all))
		}
		random := rand.New(rand.NewPCG(seed, 2))
		for range 4 {
			i := random.IntN(len(all))
			if o := &all[i]; o.verb == put && o.refused == none && o.ifVersion == 0 && !o.ifAbsent {
				o.end, o.version = unknownEnd, 0
			}
		}
		if got := linearizable(all, time.Minute); got != porcupine.Ok {
			t.Fatalf("seed %d, some calls without an answer: %v", seed, got)
		}
	}
}

// loseWrite removes a write from a history if some read returned the write's value. This makes the history impossible,
// because that read then returned a value that no client wrote.
func loseWrite(all []operation, i int) ([]operation, bool) {
	o := all[i]
	read := slices.ContainsFunc(all, func(g operation) bool { return g.verb == get && g.seen == o.value })
	if o.verb != put || o.refused != none || !read {
		return nil, false
	}
	return slices.Delete(all, i, i+1), true
}

// makeReadOutdated makes a read return a version that had already been replaced when the read began.
func makeReadOutdated(all []operation, i int) ([]operation, bool) {
	if all[i].verb != get || all[i].seen == 0 {
		return nil, false
	}
	var first, newest operation
	for _, o := range all {
		if o.verb == put && o.refused == none && o.end < all[i].begin && o.version > 0 {
			if first.version == 0 || o.version < first.version {
				first = o
			}
			if o.version > newest.version {
				newest = o
			}
		}
	}
	if first.version == newest.version {
		return nil, false
	}
	all[i].seen, all[i].version = first.value, first.version
	return all, true
}

// mutate makes the recorded histories of some records impossible, and fails the test if the checker does not notice
// this. It proves that the run would have failed if a client had really seen such a history.
func (h *history) mutate(t *testing.T) {
	byKey := map[int64][]operation{}
	for _, o := range h.operations {
		byKey[o.key] = append(byKey[o.key], o)
	}
	for name, change := range map[string]func([]operation, int) ([]operation,
		bool){"a write that was acknowledged left out": loseWrite, "a read made stale": makeReadOutdated} {
		made := 0
		for key, all := range byKey {
			for i := len(all) / 2; i < len(all); i++ {
				changed, ok := change(slices.Clone(all), i)
				if !ok {
					continue
				}
				if made++; linearizable(changed, time.Minute) == porcupine.Ok {
					t.Errorf("record %d: %s is not found", key, name)
				}
				break
			}
			if made == 10 {
				break
			}
		}
		if made == 0 {
			t.Errorf("%s: there is no call to change", name)
		}
		t.Logf("%s in %d records: found in each", name, made)
	}
}

// mutations turn a possible history into an impossible one by changing the call at one position. They return false if
// this call cannot be changed in such a way.
var mutations = []struct {
	name   string
	change func(all []operation, i int) ([]operation, bool)
}{
	{"an acknowledged write is lost", loseWrite},
	{"a read gives an older version", makeReadOutdated},
	{"a read misses a record", func(all []operation, i int) ([]operation, bool) {
		// The read can be changed to "no record" only if a put had certainly finished before the read began, and no delete
		// could have removed the record between that put and the read.
		if all[i].verb != get || all[i].seen == 0 {
			return nil, false
		}
		written := int64(-1)
		for _, o := range all {
			if o.verb == put && o.refused == none && o.end < all[i].begin {
				written = max(written, o.begin)
			}
		}
		for _, o := range all {
			if written < 0 || o.verb == del && o.end >= written && o.begin <= all[i].end {
				return nil, false
			}
		}
		all[i].seen, all[i].version = 0, 0
		return all, true
	}},
	{"a write is applied twice", func(all []operation, i int) ([]operation, bool) {
		o := all[i]
		if o.verb != put || o.refused != none {
			return nil, false
		}
		late := o.end + 1_000_000
		return append(all,
			operation{worker: 7, verb: put, key: 1, value: 999_999, begin: late, end: late + 1, version: 999_999},
			operation{worker: 7, verb: get, key: 1, begin: late + 2, end: late + 3, seen: o.value, version: o.version}), true
	}},
	{"a condition that holds is refused", func(all []operation, i int) ([]operation, bool) {
		o := &all[i]
		if o.verb != put || o.ifVersion == 0 || o.refused != none {
			return nil, false
		}
		o.refused, o.version = mismatch, o.ifVersion
		return all, true
	}},
	{"a version is given twice", func(all []operation, i int) ([]operation, bool) {
		if i == 0 || all[i].verb != put || all[i].refused != none || all[i-1].verb != put || all[i-1].refused != none {
			return nil, false
		}
		all[i].version = all[i-1].version
		return all, true
	}},
}

// TestCheckerRejectsImpossibleHistories changes histories at random places. The checker must find each change.
func TestCheckerRejectsImpossibleHistories(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			made := 0
			for seed := range uint64(40) {
				all := possibleHistory(seed, 150)
				random := rand.New(rand.NewPCG(seed, 3))
				for range 200 {
					if changed, ok := m.change(slices.Clone(all), random.IntN(len(all))); ok {
						made++
						if linearizable(changed, time.Minute) == porcupine.Ok {
							t.Errorf("seed %d: it was not found", seed)
						}
						break
					}
				}
			}
			if made < 20 {
				t.Errorf("only %d histories were changed", made)
			}
		})
	}
}

// TestUnansweredWriteMayTakeEffectLater checks that a write without a response may take effect, but only after it was
// requested.
func TestUnansweredWriteMayTakeEffectLater(t *testing.T) {
	first := operation{verb: put, key: 1, value: 1, version: 1, begin: 0, end: 10}
	lost := operation{worker: 1, verb: put, key: 1, value: 2, begin: 20, end: unknownEnd}
	for _, c := range []struct {
		name string
		read operation
		want porcupine.CheckResult
	}{
		{"it happened", operation{worker: 2, verb: get, key: 1, begin: 30, end: 40, seen: 2, version: 7}, porcupine.Ok},
		{"it did not", operation{worker: 2, verb: get, key: 1, begin: 30, end: 40, seen: 1, version: 1}, porcupine.Ok},
		{"its version is an old one", operation{worker: 2, verb: get, key: 1, begin: 30, end: 40, seen: 2, version: 1},
			porcupine.Illegal},
		{"seen before it was asked for", operation{worker: 2, verb: get, key: 1, begin: 12, end: 15, seen: 2, version: 7},
			porcupine.Illegal},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := linearizable([]operation{first, lost, c.read}, time.Minute); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
