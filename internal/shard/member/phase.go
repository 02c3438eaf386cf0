package member

// Phase is the progress of a replica. The phases exclude each other.
type Phase int

// These are the phases.
const (
	Pending        Phase = iota // its folder is here and not loaded: not yet, or no longer
	Joining                     // its folder holds a Raft id and nothing else: it is being installed from another copy
	Loading                     // its log is being read, or read again after files were replaced
	Serving                     // its node runs
	Failed                      // it could not be loaded; a new start tries again
	DamagedTail                 // what it acknowledged or voted for may be missing (rule 7): it is being reinstalled
	MissingEntries              // its leader counts on entries that are missing: it waits until the others can replace it
	GivenUp                     // nothing here can repair it: its loss is reported to etcd, and its leader replaces it
	Lost                        // etcd lists it here, but it is missing: it never serves as if it were empty
	phases                      // number of phases
)

func (p Phase) String() string {
	if p < 0 || p >= phases {
		return "unknown"
	}
	return [...]string{"Pending", "Joining", "Loading", "Serving", "Failed", "Torn", "Forgetful", "GivenUp", "Lost"}[p]
}

// Broken reports whether the phase is shown as a failure. The replica's error says which.
func (p Phase) Broken() bool { return p >= Failed }

// MissingEntries reports whether the replica lacks entries that count.
func (p Phase) MissingEntries() bool { return p == DamagedTail || p == MissingEntries || p == GivenUp }

// Event is an event in the life of a replica.
type Event int

// These are the events.
const (
	LoadBegins Event = iota // its load begins
	Installed               // the files of another copy are installed
	Loaded                  // its load has ended, and its node runs
	Failing                 // its load has ended with an error
	Tearing                 // its load has ended with an error: its tail is damaged
	Paused                  // its log was closed, to be loaded again or because it lacks entries
	Forgot                  // its leader counts on entries that it lacks
	Abandoned               // it is given up
	SetAside                // etcd places it elsewhere: it stops serving
	Missing                 // etcd lists it here, but it is missing
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

// transitions are all legal transitions. A load runs without the lock under which decisions are made. It may therefore
// end after the replica was set aside or was found to lack entries: what was decided meanwhile remains in force.
var transitions = map[Phase]map[Event]Phase{
	Pending: {
		LoadBegins: Loading, SetAside: Pending, Forgot: MissingEntries,
		Paused: Pending, Loaded: Pending, Failing: Failed, Tearing: DamagedTail, // these events end a load that began before
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

// After returns the phase that follows p after the event e. It returns false if e cannot happen in phase p; the phase
// then remains p.
func (p Phase) After(e Event) (Phase, bool) {
	if p == Lost || e == Missing {
		return Lost, true // it stays lost until another replica is begun in its place
	}
	next, legal := transitions[p][e]
	if !legal {
		return p, false
	}
	return next, true
}
