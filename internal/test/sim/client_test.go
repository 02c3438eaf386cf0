package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// call is a client's operation on one record.
type call struct {
	what string // get, put or delete
	id   int64
	cond replica.Condition
}

// reply is the response to a call. For a refused write, index is the version that the refusal named as the newest one.
// For any other call, it is the version that was read or written.
type reply struct {
	index   uint64
	refused error // nil, ErrExists or ErrMismatch
}

// operation is a call with its response. begin and end are the numbers that callSequence gave to the call and the
// response.
type operation struct {
	client    int
	call      call
	reply     reply
	begin     int64
	end       int64
	at, until time.Duration // virtual time since the run began, for messages
}

// callSequence numbers calls and responses in the order in which they happen. Virtual time cannot be used for this,
// because many of them happen at the same virtual time.
var callSequence atomic.Int64

// client makes one call after another, and retries each call until the call is answered.
func (w *world) client(number int) {
	random := rand.New(rand.NewPCG(w.seed, 100+uint64(number)))
	last := map[int64]uint64{} // the versions that this client has seen
	begun := time.Now()
	for n := uint64(0); ; n++ {
		if !w.sleep(between(random, 0, w.cfg.pause)) {
			return
		}
		w.mu.Lock()
		stopping, calm := w.stopping, w.calm
		w.mu.Unlock()
		if stopping {
			return
		}
		op := operation{client: number, call: randomCall(random, last, w.cfg.keys), begin: callSequence.Add(1),
			at: time.Since(begun)}
		if calm {
			op.call = call{what: "get", id: op.call.id}
		}
		if !w.perform(&op, random, nil, n) {
			return
		}
		op.until = time.Since(begun)
		last[op.call.id] = op.reply.index
		w.remember(op)
	}
}

// churnIDs is the first id of the records that churn writes.
const churnIDs = 1000

// churn makes writes without request ids. When such a write is superseded, compaction can drop it, because no client
// will retry it. The ledger checks these writes. judge() does not check them, because each of them is tried only once
// and their order is not recorded.
func (w *world) churn() {
	random := rand.New(rand.NewPCG(w.seed, 99))
	for n := 0; w.sleep(between(random, 0, w.cfg.pause)); n++ {
		w.mu.Lock()
		stopping, calm := w.stopping, w.calm
		w.mu.Unlock()
		if stopping {
			return
		}
		if calm {
			continue
		}
		write := replica.Write{ID: churnIDs + random.Int64N(8), Delete: random.IntN(4) == 0}
		if !write.Delete {
			write.Data = []byte(fmt.Sprintf("churn %d:%s", n, strings.Repeat("x", random.IntN(2500))))
		}
		if p := w.choose(random, false); p != nil {
			w.ledger.recordChurn(askedFor(write))
			ctx, cancel := context.WithTimeout(w.ctx, 500*time.Millisecond)
			_, _ = p.replica.Propose(write).Wait(ctx)
			cancel()
		}
	}
}

func askedFor(w replica.Write) write { return write{id: w.ID, data: hash(w.Data), delete: w.Delete} }

func randomCall(random *rand.Rand, last map[int64]uint64, keys int64) call {
	c := call{id: random.Int64N(keys)}
	switch random.IntN(10) {
	case 0, 1, 2:
		c.what = "get"
	case 3:
		c.what = "delete"
	case 4:
		c.what, c.cond.IfAbsent = "put", true
	case 5:
		c.what, c.cond.IfVersion = "put", last[c.id]
	default:
		c.what = "put"
	}
	return c
}

// perform makes a client's n-th call and retries it until it is answered. It returns false if the run ends first. If
// p is not nil, the first attempt goes to p. Other attempts go to a process that claims to lead, and sometimes to any
// process.
func (w *world) perform(op *operation, random *rand.Rand, p *process, n uint64) bool {
	var request [16]byte
	binary.LittleEndian.PutUint64(request[:], uint64(op.client)+1)
	binary.LittleEndian.PutUint64(request[8:], n+1)
	data := []byte(fmt.Sprintf("%d/%d:%s", op.client, n, strings.Repeat("x", random.IntN(2500))))
	blob := random.IntN(12) == 0
	if op.call.what == "delete" {
		data, blob = nil, false
	}
	for ; ; p = nil {
		if p == nil {
			p = w.choose(random, op.call.what == "get")
		}
		if p != nil {
			ctx, cancel := context.WithTimeout(w.ctx, between(random, 100*time.Millisecond, 2*time.Second))
			var answered bool
			if op.call.what == "get" {
				answered = w.read(ctx, p, op)
			} else {
				answered = w.write(ctx, random, p, op, request, data, blob)
			}
			cancel()
			if answered {
				return true
			}
		}
		if !w.sleep(between(random, 5*time.Millisecond, 100*time.Millisecond)) {
			return false
		}
	}
}

// choose returns a process that claims to lead, or nil if there is none. With a probability of one in eight, it
// returns any process instead. If the argument anybody is true, this probability is more than one half.
func (w *world) choose(random *rand.Rand, anybody bool) *process {
	all := w.processes()
	if len(all) == 0 {
		return nil
	}
	if anybody && random.IntN(2) == 0 || random.IntN(8) == 0 {
		return all[random.IntN(len(all))]
	}
	from := random.IntN(len(all))
	for i := range all {
		if p := all[(from+i)%len(all)]; p.replica.Status().Leader {
			return p
		}
	}
	return nil
}

// recordResponse records when a response was received. It returns false if the process had died before that, because a
// dead process cannot respond.
func (w *world) recordResponse(p *process, op *operation) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	op.end = callSequence.Add(1)
	return !p.dead
}

func (w *world) write(ctx context.Context, random *rand.Rand, p *process, op *operation, request [16]byte, data []byte,
	blob bool) bool {
	ask := replica.Write{
		Delete: op.call.what == "delete", ID: op.call.id, Data: data, RequestID: request, Condition: op.call.cond,
	}
	asked := askedFor(ask)
	if blob {
		ref, err := p.storeBlob(data)
		if err != nil {
			return false // the process is about to die
		}
		w.ledger.keepBlob(ref, data)
		ask.Data, ask.Blob, asked.data = nil, &ref, hash(ref.Encode())
	}
	w.ledger.ask(request, asked)
	result, err := p.replica.Propose(ask).Wait(ctx)
	if !w.recordResponse(p, op) {
		return false
	}
	var condition *replica.ConditionError
	var damage *format.DamageError
	switch {
	case errors.As(err, &condition):
		op.reply = reply{index: condition.Current, refused: condition.Err}
		w.repeatLate(random, p, ask, data, op.reply)
		return true
	case errors.As(err, &damage) && !p.disk.Crashed():
		if !w.mayHaveRot(p.machine) {
			w.violate(oracleDisk, "%v: write: %v, and its disk is good", p.machine, err)
		}
		return false
	case err != nil:
		return false
	}
	op.reply = reply{index: result.Index}
	w.repeatLate(random, p, ask, data, op.reply)
	if result.Index != 0 {
		if problem := w.ledger.checkAcknowledged(request, result.Index); problem != "" {
			w.violate(oracleKept, "%v: request %x: %s", p.machine, request[:4], problem)
		}
	}
	return true
}

func (w *world) read(ctx context.Context, p *process, op *operation) bool {
	if err := p.replica.ReadBarrier(ctx); err != nil {
		return false
	}
	record, err := p.log.Get(op.call.id, group.GetOptions{})
	if !w.recordResponse(p, op) {
		return false
	}
	var damage *format.DamageError
	switch {
	case errors.Is(err, group.ErrNotFound):
		op.reply = reply{}
		return true
	case errors.As(err, &damage) && !p.disk.Crashed():
		w.noteFound(p.machine, "by a read", damage.Damage.File)
		if !w.mayHaveRot(p.machine) {
			w.violate(oracleDisk, "%v: read: %v, and its disk is good", p.machine, err)
		}
		return false
	case err != nil:
		return false
	}
	data := record.Data
	if record.Blob != nil {
		if content, err := p.readBlob(*record.Blob); err != nil || !w.ledger.isBlob(*record.Blob, content) {
			if errors.As(err, &damage) && w.mayHaveRot(p.machine) {
				w.noteFound(p.machine, "by a read", damage.Damage.File)
			} else if !errors.Is(err, format.ErrClosed) && !p.disk.Crashed() {
				o := oracleRead
				if err != nil {
					o = oracleDisk
				}
				w.violate(o, "%v: version %d of record %d: blob %v is not what was put: %v", p.machine, record.Index, op.call.id,
					record.Blob, err)
			}
			return false
		}
		data = record.Blob.Encode()
	}
	if problem := w.ledger.checkRead(op.call.id, record.Index, data); problem != "" {
		w.violate(oracleRead, "%v: %s", p.machine, problem)
	}
	op.reply = reply{index: record.Index}
	return true
}

// model describes the effects of operations on one record. Its state is the index of the newest version of the
// record, or 0 if there is no record.
var model = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		current, c, r := state.(uint64), input.(call), output.(reply)
		switch {
		case c.what == "get":
			return r.index == current, current
		case c.cond.IfAbsent && current != 0:
			return errors.Is(r.refused, replica.ErrExists) && r.index == current, current
		case c.cond.IfVersion != 0 && c.cond.IfVersion != current:
			return errors.Is(r.refused, replica.ErrMismatch) && r.index == current, current
		case r.refused != nil:
			return false, current
		case c.what == "delete":
			return (r.index != 0) == (current != 0), uint64(0)
		}
		return r.index > current, r.index
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// judge checks whether the history is possible. For each record there must be one order of all operations that is
// consistent with every client's responses.
func judge(history []operation) (violations []violation) {
	byID := map[int64][]operation{}
	for _, op := range history {
		byID[op.call.id] = append(byID[op.call.id], op)
	}
	for id, ops := range byID {
		input := make([]porcupine.Operation, len(ops))
		for i, op := range ops {
			input[i] = porcupine.Operation{ClientId: op.client, Input: op.call, Output: op.reply, Call: op.begin, Return: op.end}
		}
		if result := porcupine.CheckOperationsTimeout(model, input, time.Minute); result != porcupine.Ok {
			violations = append(violations, violation{oracleLinear, fmt.Sprintf("record %d is not linearizable: %v", id,
				result)})
		}
	}
	return violations
}
