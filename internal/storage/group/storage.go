package group

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

var _ raft.Storage = (*Log)(nil)

// InitialState implements raft.Storage. The other methods of raft.Storage are FirstIndex, LastIndex, Term, Entries
// and Snapshot. They return raft.ErrCompacted for entries at or below the compaction floor. Entries that are not
// applied yet are returned from memory.
func (l *Log) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	hard := l.w.hard
	return &raftpb.HardState{Term: &hard.Term, Vote: &hard.Vote, Commit: &hard.Commit},
		raftpb.EnsureConfState(l.state.conf), nil
}

// FirstIndex implements raft.Storage.
func (l *Log) FirstIndex() (uint64, error) {
	l.state.mu.RLock()
	defer l.state.mu.RUnlock()
	return l.state.floor + 1, nil
}

// LastIndex implements raft.Storage.
func (l *Log) LastIndex() (uint64, error) {
	l.state.mu.RLock()
	defer l.state.mu.RUnlock()
	return l.state.last, nil
}

// Term implements raft.Storage.
func (l *Log) Term(at uint64) (uint64, error) {
	l.state.mu.RLock()
	defer l.state.mu.RUnlock()
	return l.state.term(at)
}

// Entries implements raft.Storage.
func (l *Log) Entries(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	l.state.mu.RLock()
	floor, last := l.state.floor, l.state.last
	out, more := l.state.tailEntries(nil, lo, hi, &maxBytes)
	tailFirst := l.state.tail.first
	inTail := l.state.tail.at(lo) != nil
	l.state.mu.RUnlock()
	switch {
	case lo <= floor:
		return nil, raft.ErrCompacted
	case hi > last+1:
		return nil, raft.ErrUnavailable
	case inTail || lo >= hi:
		return out, nil
	}
	err := l.reader.walkEntries(lo, min(hi, max(tailFirst, lo+1))-1, nil, func(e *format.Entry, _ index.Loc) bool {
		r := raftEntry(e)
		more = take(&maxBytes, r, len(out) == 0)
		if more {
			out = append(out, r)
		}
		return more
	})
	if err != nil {
		l.damages.noteOf(err)
		return nil, fmt.Errorf("group %s: entries from index %d: %w", l.opts.Identity.Name, lo, err)
	}
	if len(out) == 0 {
		return nil, raft.ErrUnavailable
	}
	if next := lo + uint64(len(out)); more && next < hi {
		l.state.mu.RLock()
		defer l.state.mu.RUnlock()
		out, _ = l.state.tailEntries(out, next, hi, &maxBytes)
	}
	return out, nil
}

// raftEntry returns the raftpb.Entry for an entry. They share no memory.
func raftEntry(e *format.Entry) *raftpb.Entry {
	r := format.RaftEntry(e)
	if e.Kind == format.KindConf {
		r.Data = bytes.Clone(r.Data)
	}
	return r
}

// take subtracts the size of an entry from the budget. It returns false if the entry does not fit. If first is true,
// the entry always fits.
func take(budget *uint64, r *raftpb.Entry, first bool) bool {
	size := uint64(len(r.Data)) + 24 // in protobuf, type, term and index together take at most 24 bytes
	if size > *budget && !first {
		*budget = 0
		return false
	}
	*budget -= min(size, *budget)
	return true
}

// Snapshot implements raft.Storage. The snapshot has no data. It only tells Raft that the member can no longer catch
// up with entries from the log, so that its files must be installed (Export, Install).
func (l *Log) Snapshot() (*raftpb.Snapshot, error) {
	l.state.mu.RLock()
	defer l.state.mu.RUnlock()
	at := l.state.exportIndex()
	term, err := l.state.term(at)
	if err != nil || at == 0 || l.state.conf == nil {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &at, Term: &term, ConfState: l.state.conf}}, nil
}

// AppliedIndex returns the index of the last applied entry.
func (l *Log) AppliedIndex() uint64 { return l.state.applied.Load() }

// LastCommitTime returns the greatest commit time of the appended entries. A new leader must not use an earlier commit
// time.
func (l *Log) LastCommitTime() int64 {
	l.state.mu.RLock()
	defer l.state.mu.RUnlock()
	return l.state.lastCommit
}

const (
	// commitStepMax is the longest time between two entries that RecentRequests takes into account. Longer steps in the
	// commit times are not trusted, because commit times also jump when a leader's clock is changed, or when a machine
	// with a different clock becomes leader.
	commitStepMax = 10 * time.Second
	// clockErrorMax is how wrong a machine's clock may be for a start to still read all requests that must be remembered.
	clockErrorMax = 24 * time.Hour
)

// RecentRequests returns the applied puts and deletes with a request id that a window may remember, oldest first, so
// that the replica can rebuild the window after a restart. It skips unreadable entries. The argument now is the
// machine's time, in Unix ns.
//
// The age of a request is computed from the commit times in the log. The time between two entries counts as at most
// commitStepMax, so that requests do not become old when a wrong clock makes the commit times jump. The result may
// therefore contain too many requests, but not too few. Segments that are older than the window's age plus
// clockErrorMax, according to the machine's clock, are not read. A clock that is wrong by less than clockErrorMax
// therefore does no harm.
func (l *Log) RecentRequests(w format.RequestWindow, now int64) iter.Seq[format.Request] {
	return func(yield func(format.Request) bool) {
		if err := l.enter(); err != nil {
			return
		}
		defer l.leave()
		since := now - int64(w.Age+clockErrorMax)
		through := l.state.applied.Load()
		from := l.reader.firstSince(through-min(through, uint64(w.WritesMax))+1, through, since)
		var pieces [][]format.Request // the requests in each piece of the log, beginning with the newest piece
		span, next := time.Duration(0), through+1
		var begin int64 // commit time of the first write in the piece that was read last; 0 if that piece has no write
		for size := uint64(64); next > from && span < w.Age && (span < w.AgeMin ||
			through-next < uint64(w.Writes)); size *= 2 {
			hi := next - 1
			next = max(from, next-min(next, size))
			piece, err := l.reader.requestsIn(next, hi, since)
			if err != nil {
				l.folder.logger.Warn("request ids could not be read: a repeated write may be written again", "error", err)
			}
			if begin != 0 && piece.last != 0 {
				span += commitStep(piece.last, begin)
			}
			if piece.first != 0 {
				begin = piece.first
			}
			span += piece.span
			pieces = append(pieces, piece.requests)
		}
		for _, requests := range slices.Backward(pieces) {
			for _, r := range requests {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// requestPiece is the result of requestsIn.
type requestPiece struct {
	requests    []format.Request
	first, last int64         // commit times of the first and the last write; 0 if there is no write
	span        time.Duration // time between these two writes, with each step limited to commitStepMax
}

// requestsIn returns the requests in a part of the log that were committed at or after a given time.
func (r *reader) requestsIn(lo, hi uint64, since int64) (p requestPiece, err error) {
	// Damage that this walk finds is recorded. After the repair of the damage, the replica reads the requests again.
	err = r.walkEntries(lo, hi, r.damages.note, func(e *format.Entry, _ index.Loc) bool {
		if !e.Kind.IsVersion() && e.Kind != format.KindRequest || e.CommitTime < since {
			return true
		}
		if p.first == 0 {
			p.first = e.CommitTime
		} else {
			p.span += commitStep(p.last, e.CommitTime)
		}
		p.last = e.CommitTime
		if e.RequestID != [16]byte{} {
			p.requests = append(p.requests, format.RequestOf(e))
		}
		return true
	})
	return p, err
}

// commitStep returns the time between two consecutive writes in the log, as used to compute the age of requests.
func commitStep(before, after int64) time.Duration {
	return min(max(0, time.Duration(after-before)), commitStepMax)
}

// firstSince returns the index at which a search for entries committed at or after the given time can begin. All
// earlier entries were committed before that time. The result is either the argument from or the first index of a
// later segment. This works because commit times in a log never decrease.
func (r *reader) firstSince(from, through uint64, since int64) uint64 {
	views := r.views(from, through)
	defer unpinAll(views)
	for i := len(views) - 1; i >= 0; i-- {
		v := views[i]
		if v.active || v.rows != nil {
			// The segment is active or has no hint yet, so its entries are recent and must be read.
			continue
		}
		// A LastCommit of 0 means that compaction has left no entry with a commit time, so the segment's age is not known.
		if h, err := r.hints.of(v); err == nil && h.LastCommit != 0 && h.LastCommit < since {
			return max(from, v.through+1)
		}
	}
	return from
}
