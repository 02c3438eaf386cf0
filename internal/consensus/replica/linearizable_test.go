package replica

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// call is an operation on one record as a client saw it.
type call struct {
	what string // get, put or delete
	id   int64
	cond Condition
}

// reply is the result of a call. The field index is the index of the version that was read or written. If a write was
// refused, it is the index of the current version, which the refusal names.
type reply struct {
	index uint64
	err   error // nil, ErrExists or ErrMismatch
}

// recordModel models one record. The model's state is the index of the newest version, or 0 if there is no record.
var recordModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byID := map[int64][]porcupine.Operation{}
		for _, op := range history {
			id := op.Input.(call).id
			byID[id] = append(byID[id], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range byID {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		current, c, r := state.(uint64), input.(call), output.(reply)
		switch {
		case c.what == "get":
			return r.index == current, current
		case c.cond.IfAbsent && current != 0:
			return errors.Is(r.err, ErrExists) && r.index == current, current
		case c.cond.IfVersion != 0 && c.cond.IfVersion != current:
			return errors.Is(r.err, ErrMismatch) && r.index == current, current
		case r.err != nil:
			return false, current
		case c.what == "delete":
			return (r.index != 0) == (current != 0), uint64(0)
		}
		return r.index > current, r.index
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

func TestConditionsAreLinearizablePerRecord(t *testing.T) {
	m := newMachine(t, vfstest.NewMem(), "/v")
	one := m.open("7", func(g *group.Options, _ *Options) { g.SegmentBytes = 64 << 10 })
	const clients, calls, records = 8, 300, 6
	begin := time.Now()
	histories := make([][]porcupine.Operation, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(c)))
			last := map[int64]uint64{} // newest version of each record that this client has seen
			for i := range calls {
				in := randomCall(random, last, records)
				op := porcupine.Operation{ClientId: c, Input: in, Call: time.Since(begin).Nanoseconds()}
				out := one.perform(t, in, uint64(c), uint64(i))
				op.Output, op.Return = out, time.Since(begin).Nanoseconds()
				histories[c] = append(histories[c], op)
				last[in.id] = out.index
			}
		})
	}
	wg.Wait()
	var history []porcupine.Operation
	refusals := 0
	for _, h := range histories {
		for _, op := range h {
			if op.Output.(reply).err != nil {
				refusals++
			}
		}
		history = append(history, h...)
	}
	if refusals < calls/10 {
		t.Fatalf("only %d refusals", refusals)
	}
	if result := porcupine.CheckOperationsTimeout(recordModel, history, time.Minute); result != porcupine.Ok {
		t.Fatalf("not linearizable: %v", result)
	}
}

func randomCall(random *rand.Rand, last map[int64]uint64, records int64) call {
	c := call{id: random.Int64N(records)}
	switch random.IntN(8) {
	case 0, 1:
		c.what = "get"
	case 2:
		c.what = "delete"
	case 3:
		c.what, c.cond.IfVersion = "delete", last[c.id]
	case 4:
		c.what, c.cond.IfAbsent = "put", true
	case 5, 6:
		c.what, c.cond.IfVersion = "put", last[c.id]
	default:
		c.what = "put"
	}
	return c
}

func (one *member) perform(t *testing.T, c call, client, number uint64) reply {
	if c.what == "get" {
		if err := one.ReadBarrier(context.Background()); err != nil {
			t.Error(err)
		}
		index, deleted, err := one.log.Head(c.id)
		if err != nil && !isNotFound(err) {
			t.Error(err)
		}
		if deleted {
			index = 0
		}
		return reply{index: index}
	}
	w := write{Write{ID: c.id, Delete: c.what == "delete", Condition: c.cond}}
	if number%3 == 0 { // two concurrent calls with the same request id must get the result of the same write
		w.RequestID = requestID(client, number)
		one.Propose(w)
	}
	result, err := one.Propose(w).Wait(context.Background())
	var condition *ConditionError
	if errors.As(err, &condition) {
		return reply{index: condition.Current, err: condition.Err}
	}
	if err != nil {
		t.Error(err)
	}
	return reply{index: result.Index}
}
