package replica

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// ledger records the acknowledged writes. At the time of a crash, it contains only writes that were acknowledged
// before the crash.
type ledger struct {
	mu    sync.Mutex
	acked map[int64]Result // result of each record's put, by record id; each record is put only once
}

func (l *ledger) note(id int64, r Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[id] = r
}

const clients, puts = 8, 12 // number of writers, and number of puts by each writer between two crashes

func crashData(id int64) string { return fmt.Sprintf("%d:%0*d", id, int(id%97)*10, id) }

// Concurrent writers put records into several groups, each with a separate request id. The power fails at an
// arbitrary disk operation. After each power cut, everything that was acknowledged before must exist, a repeated
// write must return the first result, and an unacknowledged write must exist at most once.
func TestCrashKeepsWhatWasAcknowledgedAndRepeatsAreExact(t *testing.T) {
	crashes := 60
	switch {
	case soaktest.Long():
		crashes = 2000
	case testing.Short():
		crashes = 16
	}
	shared := false
	small := func(g *group.Options, o *Options) {
		g.SegmentBytes, o.Probe = 32<<10, &Probe{Shared: shared}
	}
	const groups = 3
	random := rand.New(rand.NewPCG(soaktest.Seed(t, 3), 4))
	mem := vfstest.NewMem()
	known := &ledger{acked: map[int64]Result{}}
	var seen crashCounts
	next := int64(0)
	for crash := range crashes {
		survival := vfstest.Survival{Kind: vfstest.SurvivalKinds[crash%len(vfstest.SurvivalKinds)], Seed: uint64(crash)}
		shared = crash%4 > 0
		if crash%4 == 2 { // the power fails again during the replay of the journal
			mem.CrashAfter(mem.OpCount() + int64(random.IntN(6)))
			_, _ = replay(mem, "/v")
			mem = mem.CrashClone(survival)
		}
		m := newMachine(t, mem, "/v")
		if m.replayed > 0 {
			seen.replayed++
		}
		members := make([]*member, groups)
		for i := range members {
			members[i] = m.open(name(i), small)
		}
		checkAfterCrash(t, members, known, next, crash, &seen)
		mem.CrashAfter(mem.OpCount() + int64(random.IntN(120)))
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				for i := range int64(puts) {
					id := next + i*clients + int64(c)
					w := put(id, crashData(id)).request(uint64(id), 9)
					result, err := members[id%groups].Propose(w).Wait(context.Background())
					if err == nil {
						known.note(id, result)
					}
				}
			})
		}
		wg.Wait()
		next += puts * clients
		if mem.Crashed() {
			seen.crashes++
		}
		m.halt()
		mem = mem.CrashClone(survival)
	}
	t.Logf("%+v", seen)
	if seen.verified < crashes*50 || seen.repeated == 0 || seen.lost == 0 || seen.crashes < crashes/2 ||
		seen.replayed < crashes/4 {
		t.Fatal("the test tests little")
	}
}

// crashCounts counts the events of the test.
type crashCounts struct{ crashes, verified, repeated, lost, replayed int }

// checkAfterCrash reads back the records of the last round and one in eight of the others, and repeats every write of
// the last round. Eight crashes in a row read every older record.
func checkAfterCrash(t *testing.T, members []*member, known *ledger, next int64, crash int, seen *crashCounts) {
	t.Helper()
	for id := range next {
		isNew := id >= next-puts*clients
		if !isNew && (id+int64(crash))%8 != 0 {
			continue
		}
		one := members[id%int64(len(members))]
		first, acked := known.acked[id]
		got, found := one.data(t, id)
		if acked && !found {
			t.Fatalf("record %d was acknowledged as %+v and is gone", id, first)
		}
		if found && got != crashData(id) {
			t.Fatalf("record %d is not as written: %q", id, got)
		}
		seen.verified++
		if !isNew {
			continue // the write was already repeated after an earlier crash
		}
		again := one.must(t, put(id, crashData(id)).request(uint64(id), 9))
		switch {
		case again.Repeated != found:
			t.Fatalf("record %d: found %v, but the repeated write answers %+v", id, found, again)
		case acked && (again.Index != first.Index || again.CommitTime != first.CommitTime):
			t.Fatalf("record %d: first %+v, repeated %+v", id, first, again)
		case found:
			seen.repeated++
		default:
			seen.lost++
		}
		known.acked[id] = again
		versions, err := one.log.Versions(id, 0, 10)
		ok(t, err)
		if len(versions) != 1 {
			t.Fatalf("record %d was written %d times", id, len(versions))
		}
	}
}
