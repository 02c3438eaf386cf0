package replica

import (
	"fmt"
	"slices"
)

// phase says how far a round has come with its Ready. A lack of space ends a round within a phase, and the next round
// continues there.
type phase uint8

const (
	idling       phase = iota // no Ready was taken
	taken                     // a Ready was taken from Raft, and nothing of it is done
	sentEarly                 // the messages that need not wait for the sync were sent
	visibleEarly              // the committed entries that were in the log before this Ready are visible
	appliedEarly              // the memberships among these entries are recorded, and their writes are answered
	appended                  // the entries and the hard state are in the log, perhaps not synced
	synced                    // the entries and the hard state are durable, or there are none
	sentLate                  // the messages that had to wait for the sync were sent
	visible                   // all committed entries are visible
	applied                   // the memberships among them are recorded, and their writes are answered
	failed                    // the replica has failed: nothing is written any more
)

func (p phase) String() string {
	return [...]string{"idle", "taken", "sent early", "visible early", "applied early", "appended", "synced", "sent late",
		"visible", "applied", "failed"}[p]
}

// followers holds the phases that may follow a phase. The phase failed may follow every phase.
var followers = [...][]phase{
	idling:       {taken},
	taken:        {sentEarly},
	sentEarly:    {visibleEarly},
	visibleEarly: {appliedEarly},
	appliedEarly: {appended, synced}, // synced: there is nothing to write
	appended:     {synced},
	synced:       {sentLate},
	sentLate:     {visible},
	visible:      {applied},
	applied:      {idling},
	failed:       {},
}

// enter begins a phase. It panics if the phase must not follow the present one. A panic fails the replica, so nothing
// is acknowledged that is not durable.
func (p *phase) enter(next phase) {
	if next != failed && !slices.Contains(followers[*p], next) {
		panic(fmt.Sprintf("phase %q of a round after phase %q", next, *p))
	}
	*p = next
}
