package writes

import "time"

// SyncTimes is when the sync began and ended that made a write durable here. With several copies those of a majority
// count; this is the leader's own.
type SyncTimes struct {
	Began, Ended time.Time
	first, last  uint64 // indexes of the entries that it made durable
}

// syncsKept is how many syncs back a round looks: with several copies a write is committed some rounds after its own
// sync.
const syncsKept = 16

// SyncLog holds the times of the last syncs of one replica. It is not safe for concurrent use.
type SyncLog struct {
	syncs [syncsKept]SyncTimes
	next  int
}

// Note notes a sync that has just ended, and the indexes of the entries that it made durable.
func (l *SyncLog) Note(began time.Time, first, last uint64) {
	l.syncs[l.next] = SyncTimes{Began: began, Ended: time.Now(), first: first, last: last}
	l.next = (l.next + 1) % syncsKept
}

// Of gives the sync of an entry; nil: it is too long ago, or the entry was not synced by itself.
func (l *SyncLog) Of(index uint64) *SyncTimes {
	for i := range l.syncs {
		if s := l.syncs[i]; s.first <= index && index <= s.last {
			return &s
		}
	}
	return nil
}
