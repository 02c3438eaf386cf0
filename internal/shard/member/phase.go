package member

// Phase is a replica's progress. The phases exclude each other.
type Phase int

// These are the phases.
const (
	Pending        Phase = iota // the replica's folder is on the volume, but is not loaded
	Joining                     // the folder holds only a Raft id: the replica is being installed from another copy
	Loading                     // the log is being read, or read again after files were replaced
	Serving                     // the Raft node of the replica runs
	Failed                      // the load has failed; a new start tries again
	DamagedTail                 // acknowledged data or a vote may be missing (rule 7): the replica is being reinstalled
	MissingEntries              // the replica lacks entries on which the leader relies; the other members replace it later
	GivenUp                     // not repairable on this shard: its loss is reported to etcd, and the leader replaces it
	Lost                        // listed at this shard by etcd, but without data; no empty replica serves in its place
	phases                      // number of phases
)

func (p Phase) String() string {
	if p < 0 || p >= phases {
		return "unknown"
	}
	return [...]string{"Pending", "Joining", "Loading", "Serving", "Failed", "Torn", "Forgetful", "GivenUp", "Lost"}[p]
}

// Broken reports whether the phase is shown as a failure. The replica's error describes the failure.
func (p Phase) Broken() bool { return p >= Failed }

// MissingEntries reports whether the replica may lack entries that it has acknowledged.
func (p Phase) MissingEntries() bool { return p == DamagedTail || p == MissingEntries || p == GivenUp }

// Event is an event in a replica's life.
type Event int

// These are the events.
const (
	LoadBegins Event = iota // the load of the replica begins
	Installed               // the files of another copy are installed
	Loaded                  // the load has succeeded, and the Raft node runs
	Failing                 // the load has failed
	Tearing                 // the load has found that the tail is damaged
	Paused                  // the log was closed, to be loaded again or because it lacks entries
	Forgot                  // the replica lacks entries on which the leader relies
	Abandoned               // the replica is given up
	SetAside                // etcd places the replica on another shard, so it stops serving
	Missing                 // etcd lists the replica at this shard, but its data is missing
	events                  // number of events
)

func (e Event) String() string {
	if e < 0 || e >= events {
		return "unknown"
	}
	return [...]string{
		"LoadBegins", "Installed", "Loaded", "Failing", "Tearing", "Paused", "Forgot", "Abandoned", "SetAside", "Missing",
	}[e]
}

// transitions holds all legal transitions. A load does not hold the lock under which decisions are made, so a replica
// may be set aside, or may be found to lack entries, while it is being loaded. When the load then finishes, that
// decision remains in force.
var transitions = map[Phase]map[Event]Phase{
	Pending: {
		LoadBegins: Loading, SetAside: Pending, Forgot: MissingEntries,
		// These events come from an earlier load that has just finished.
		Paused: Pending, Loaded: Pending, Failing: Failed, Tearing: DamagedTail,
	},
	Joining: {Installed: Loading},
	Loading: {Loaded: Serving, Failing: Failed, Tearing: DamagedTail, Paused: Loading, Forgot: MissingEntries,
		SetAside: Pending},
	Serving:        {Paused: Loading, SetAside: Pending, Failing: Failed, Loaded: Serving},
	Failed:         {},
	DamagedTail:    {Installed: DamagedTail, Loaded: Serving, Failing: Failed, Tearing: DamagedTail, Abandoned: GivenUp},
	MissingEntries: {Abandoned: GivenUp, Loaded: MissingEntries, Failing: MissingEntries, Tearing: MissingEntries},
	GivenUp:        {},
}

// After returns the phase of a replica that was in phase p when the event e happened. It returns p and false if e
// cannot happen in phase p.
func (p Phase) After(e Event) (Phase, bool) {
	if p == Lost || e == Missing {
		return Lost, true // a lost replica remains lost until a new one replaces it
	}
	next, legal := transitions[p][e]
	if !legal {
		return p, false
	}
	return next, true
}
