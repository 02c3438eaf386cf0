package placement

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// If etcd is restored from an older backup, it shows where groups were at the time of the backup, which may differ
// from where they are now (safety rule 9). The first process that notices the restore freezes the store. From then
// on, no process moves, creates or deletes anything on the basis of etcd. The freeze ends when etcd has been
// overwritten with the true state, which the shards report. docs/placement.md describes the procedure.

// Mark is the state of a store's placement up to which a process has read it. Two marks of one store can be compared.
type Mark struct {
	Base uint64 // Base is Meta.EpochBase, which grows when etcd is rebuilt or reconciled
	// Revision is the revision of the whole etcd. Every write by any client to any key increases it.
	Revision int64
	// Content is the highest revision at which any key that is never deleted was written. Even if the restore raised
	// etcd's revision, a lower Content shows that etcd holds an older state.
	Content int64
	// ContentKey is the key that was written at revision Content, without the store's prefix. It is empty if that key is
	// unknown. In every later state of the same etcd, the key exists with the same value or a newer one.
	ContentKey string
	Cluster    uint64 // id of etcd's cluster; 0 if unknown
}

// Behind compares this mark with the mark seen, which was observed earlier. If this mark belongs to an older state of
// etcd than the mark seen, Behind returns the reason for this conclusion. Otherwise it returns an empty string.
func (m Mark) Behind(seen Mark) string {
	switch {
	case m.Base > seen.Base:
		return ""
	case m.Base < seen.Base:
		return fmt.Sprintf("it is from before it was last rebuilt or reconciled (epoch base %d, seen was %d)", m.Base,
			seen.Base)
	case m.Revision < seen.Revision:
		return fmt.Sprintf("its revision is %d, seen was %d", m.Revision, seen.Revision)
	case m.Content < seen.Content:
		return fmt.Sprintf("its newest key is of revision %d, seen was one of %d", m.Content, seen.Content)
	case m.Cluster != seen.Cluster && m.Cluster != 0 && seen.Cluster != 0:
		return fmt.Sprintf("it is cluster %x, before it was cluster %x", m.Cluster, seen.Cluster)
	}
	return ""
}

// Freeze records why a store is frozen and what the freeze still waits for. It is stored under the key "frozen".
type Freeze struct {
	By     string   `json:"by"` // the process that noticed the rollback of etcd
	Reason string   `json:"reason"`
	Since  string   `json:"since"` // time in RFC 3339 format
	Waits  []string `json:"waits,omitempty"`
}

// String returns a message that describes the freeze and says what has to be done next.
func (f Freeze) String() string {
	words := fmt.Sprintf(
		"etcd was set back to an older state (noticed by %s: %s). Nothing is moved, made or deleted until the shards have "+
			"written over it what is true; settled groups are read and written meanwhile", f.By, f.Reason)
	if len(f.Waits) > 0 {
		words += ". It waits: " + strings.Join(f.Waits, "; ")
	}
	return words
}

// Progress is the state up to which a process has read a store.
type Progress struct {
	Store uuid.UUID
	Mark
	// SetBack explains how the process found that etcd is older than a state that the process has already read. It is
	// empty if etcd is not older.
	SetBack string
}
