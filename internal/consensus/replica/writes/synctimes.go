package writes

import "time"

// SyncTimes holds the beginning and the end of the sync that made a write durable here. With several copies, a write
// needs the syncs of a majority; SyncTimes is only about the leader's own sync.
type SyncTimes struct {
	Began, Ended time.Time
	first, last  uint64 // indexes of the entries that the sync made durable
}

// syncsKept is how many syncs are kept. More than one is needed because with several copies a write is committed some
// rounds after its own sync.
const syncsKept = 16

// SyncLog holds the times of the last syncs of one replica. It is not safe for concurrent use.
type SyncLog struct {
	syncs [syncsKept]SyncTimes
	next  int
}

// Note records a sync that has just ended, and the indexes of the entries that it made durable.
func (l *SyncLog) Note(began time.Time, first, last uint64) {
	l.syncs[l.next] = SyncTimes{Began: began, Ended: time.Now(), first: first, last: last}
	l.next = (l.next + 1) % syncsKept
}

// Of returns the sync of an entry. It returns nil if the sync is too long ago, or none was noted for the entry.
func (l *SyncLog) Of(index uint64) *SyncTimes {
	for i := range l.syncs {
		if s := l.syncs[i]; s.first <= index && index <= s.last {
			return &s
		}
	}
	return nil
}
