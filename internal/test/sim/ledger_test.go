package sim

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// ledger holds every entry that a replica has made visible, and every write that a client has requested.
type ledger struct {
	world    *world
	mu       sync.Mutex
	entries  map[uint64]ledgerEntry // for each index, the entry of the first replica that applied it
	requests map[[16]byte]uint64    // for each request id, the index of its entry
	// attempts holds, for each request id, the writes that were tried with it. They differ if each try has its own
	// blob.
	attempts map[[16]byte][]write
	blobs    map[uuid.UUID]uint64 // maps each blob to its data's hash
	nothing  map[[16]byte]bool    // ids of requests that were answered and wrote nothing
	churned  map[write]bool       // writes without a request id
	last     uint64               // greatest index of an acknowledged write
	members  map[uint64]bool      // Raft id of every member that the group has ever had

	firstConf *raftpb.ConfState
	confIndex uint64 // index of the newest membership change that a replica has applied
}

// ledgerEntry is what the ledger records about an entry.
type ledgerEntry struct {
	index   uint64
	term    uint64
	kind    format.Kind
	id      int64
	request [16]byte
	data    uint64 // the hash of the data
	crc     uint32 // checksum that is stored together with a remembered request id
	by      uint64 // the Raft id of the replica that applied the entry
}

// write is a write that a client requested.
type write struct {
	id     int64
	data   uint64
	delete bool
}

func newLedger(w *world) *ledger {
	return &ledger{
		world: w, entries: map[uint64]ledgerEntry{}, requests: map[[16]byte]uint64{}, attempts: map[[16]byte][]write{},
		blobs: map[uuid.UUID]uint64{}, members: map[uint64]bool{}, churned: map[write]bool{}, nothing: map[[16]byte]bool{},
	}
}

func (l *ledger) begin(conf *raftpb.ConfState) {
	l.firstConf = conf
	for _, id := range conf.GetVoters() {
		l.members[id] = true
	}
}

func hash(data []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(data)
	return h.Sum64()
}

func (l *ledger) ask(request [16]byte, w write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attempts[request] = append(l.attempts[request], w)
}

// applier returns a function that a process calls with each entry that its replica applies. If the process is dead,
// the function ignores its entries, because no client can see what a dead process does.
func (l *ledger) applier(p *process) func(*format.Entry) {
	last := uint64(0)
	return func(e *format.Entry) {
		w := l.world
		w.mu.Lock()
		// The second part of the condition is for a process that was killed while it was still starting.
		dead := p.dead || p.epoch != p.machine.epoch && p.machine.process != p
		w.mu.Unlock()
		if dead {
			return
		}
		w.trace("replica %x applies index %d term %d kind %d", p.raftID, e.Index, e.Term, e.Kind)
		if o, problem := l.apply(p.raftID, e, &last); problem != "" {
			w.violate(o, "replica %x applies index %d: %s", p.raftID, e.Index, problem)
		}
	}
}

func (l *ledger) apply(raftID uint64, e *format.Entry, last *uint64) (o oracle, problem string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if *last != 0 && e.Index != *last+1 {
		return oracleAgree, fmt.Sprintf("behind index %d", *last)
	}
	*last = e.Index
	f := factOf(e)
	f.by = raftID
	if first, known := l.entries[e.Index]; known {
		f.by = first.by
		if f != first {
			return oracleAgree, fmt.Sprintf("logs disagree: it is %+v, replica %x had %+v", f, first.by, first)
		}
		return "", ""
	}
	l.entries[e.Index] = f
	if e.Kind == format.KindConf {
		l.noteConf(e)
	}
	if e.Kind != format.KindPut && e.Kind != format.KindDelete {
		return "", ""
	}
	return l.check(f)
}

func factOf(e *format.Entry) ledgerEntry {
	return ledgerEntry{index: e.Index, term: e.Term, kind: e.Kind, id: e.ID, request: e.RequestID, data: hash(e.Data),
		crc: format.RequestOf(e).CRC32C}
}

// compacted returns the part of a ledger entry that compaction keeps.
func (f ledgerEntry) compacted() ledgerEntry {
	if f.kind == format.KindPut || f.kind == format.KindDelete {
		f.kind, f.data = format.KindRequest, map[bool]uint64{true: 1}[f.kind == format.KindDelete]
	}
	return f
}

// checkEntry checks an entry of a log against the ledger. It returns a description of the problem, or an empty string
// if there is none.
func (l *ledger) checkEntry(e *format.Entry) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, known := l.entries[e.Index]
	f := factOf(e)
	f.by = first.by
	if e.Kind == format.KindRequest {
		first, f.data = first.compacted(), map[bool]uint64{true: 1}[format.RequestOf(e).Delete]
	}
	if !known || f != first {
		return fmt.Sprintf("it is %+v, applied was %+v (%v)", f, first, known)
	}
	return ""
}

// check checks that a client has requested an entry, and that no other entry was made for the same request.
func (l *ledger) check(f ledgerEntry) (o oracle, problem string) {
	w := write{id: f.id, data: f.data, delete: f.kind == format.KindDelete}
	if f.request == ([16]byte{}) {
		if !l.churned[w] {
			return oracleAsked, fmt.Sprintf("nobody asked for %+v", f)
		}
		return "", ""
	}
	if at, twice := l.requests[f.request]; twice {
		return oracleOnce, fmt.Sprintf("request %x was applied at index %d already", f.request[:9], at)
	}
	if l.nothing[f.request] {
		return oracleOnce, fmt.Sprintf("request %x was answered before as having written nothing", f.request[:9])
	}
	l.requests[f.request] = f.index
	if !slices.Contains(l.attempts[f.request], w) {
		return oracleAsked, fmt.Sprintf("nobody asked for %+v", f)
	}
	return "", ""
}

// newest returns the ledger's newest entry for each record.
func (l *ledger) newest() map[int64]ledgerEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[int64]ledgerEntry{}
	for _, f := range l.entries {
		if (f.kind == format.KindPut || f.kind == format.KindDelete) && out[f.id].index < f.index {
			out[f.id] = f
		}
	}
	return out
}

// recordChurn records a write without a request id.
func (l *ledger) recordChurn(w write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.churned[w] = true
}

// checkAcknowledged checks the index with which a write was acknowledged.
func (l *ledger) checkAcknowledged(request [16]byte, index uint64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch at, found := l.requests[request]; {
	case !found:
		return fmt.Sprintf("acknowledged as index %d, applied nowhere", index)
	case at != index:
		return fmt.Sprintf("acknowledged as index %d, applied at index %d", index, at)
	}
	l.last = max(l.last, index)
	return ""
}

// lastAcknowledged returns the greatest index of a write that was acknowledged.
func (l *ledger) lastAcknowledged() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// recordDeclined records that a request was answered and has written nothing.
func (l *ledger) recordDeclined(request [16]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nothing[request] = true
}

// checkRead checks the result of a read.
func (l *ledger) checkRead(id int64, index uint64, data []byte) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, found := l.entries[index]
	if !found || f.kind != format.KindPut || f.id != id || f.data != hash(data) {
		return fmt.Sprintf("read version %d of record %d, which is %+v (found %v)", index, id, f, found)
	}
	return ""
}

func (l *ledger) noteConf(e *format.Entry) {
	l.confIndex = max(l.confIndex, e.Index)
	var change raftpb.ConfChangeV2
	if err := proto.Unmarshal(e.Data, &change); err == nil {
		for _, c := range change.GetChanges() {
			l.members[c.GetNodeId()] = true
		}
	}
}

// newestConf returns the index of the newest membership change.
func (l *ledger) newestConf() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.confIndex
}

func (l *ledger) wasMember(id uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.members[id]
}

// keepBlob records a blob's data.
func (l *ledger) keepBlob(ref format.BlobRef, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blobs[ref.ID] = hash(data)
}

func (l *ledger) isBlob(ref format.BlobRef, data []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	want, found := l.blobs[ref.ID]
	return found && want == hash(data)
}
