package member

// Phase is how far a replica is. The phases exclude each other.
type Phase int

// The phases.
const (
	Pending   Phase = iota // its folder is here, and is not loaded: not yet, or not any more
	Joining                // its folder holds a Raft id and nothing else: it is installed from another copy
	Loading                // its log is being read, or is read anew after files were put in its place
	Serving                // its node runs
	Failed                 // it could not be loaded; a new start tries again
	Torn                   // what it acknowledged or voted for may be missing (rule 7): it is installed anew
	Forgetful              // a leader counts on entries that are missing: it waits until the others can replace it
	GivenUp                // nothing here mends it: etcd is told that it is gone, and its leader replaces it
	Lost                   // etcd says that it is here, and it is not: it never serves as if it were empty
	phases                 // how many there are
)

func (p Phase) String() string {
	if p < 0 || p >= phases {
		return "unknown"
	}
	return [...]string{"Pending", "Joining", "Loading", "Serving", "Failed", "Torn", "Forgetful", "GivenUp", "Lost"}[p]
}

// Broken tells whether a person is shown the phase as a failure. The replica's error says which.
func (p Phase) Broken() bool { return p >= Failed }

// LacksEntries tells whether entries are missing that count.
func (p Phase) LacksEntries() bool { return p == Torn || p == Forgetful || p == GivenUp }

// Event is what happens to a replica.
type Event int

// The events.
const (
	LoadBegins Event = iota // its load begins
	Installed               // the files of another copy are in its place
	Loaded                  // its load has ended, and its node runs
	Failing                 // its load has ended with an error
	Tearing                 // its load has ended with an error: its tail is damaged
	Paused                  // its log was closed, to be loaded again or to be found forgetful
	Forgot                  // its leader counts on entries that it does not have
	Abandoned               // it is given up
	SetAside                // etcd says that it is elsewhere: it stops to serve
	Missing                 // etcd says that it is here, and it is not
	events                  // how many there are
)

func (e Event) String() string {
	if e < 0 || e >= events {
		return "unknown"
	}
	return [...]string{
		"LoadBegins", "Installed", "Loaded", "Failing", "Tearing", "Paused", "Forgot", "Abandoned", "SetAside", "Missing",
	}[e]
}

// transitions are all that are legal. A load runs without the lock under which a decision is made, so it may end
// after the replica was set aside or found forgetful: what was decided meanwhile stays.
var transitions = map[Phase]map[Event]Phase{
	Pending: {
		LoadBegins: Loading, SetAside: Pending, Forgot: Forgetful,
		Paused: Pending, Loaded: Pending, Failing: Failed, Tearing: Torn, // of a load that began before
	},
	Joining:   {Installed: Loading},
	Loading:   {Loaded: Serving, Failing: Failed, Tearing: Torn, Paused: Loading, Forgot: Forgetful, SetAside: Pending},
	Serving:   {Paused: Loading, SetAside: Pending, Failing: Failed, Loaded: Serving},
	Failed:    {},
	Torn:      {Installed: Torn, Loaded: Serving, Failing: Failed, Tearing: Torn, Abandoned: GivenUp},
	Forgetful: {Abandoned: GivenUp, Loaded: Forgetful, Failing: Forgetful, Tearing: Forgetful},
	GivenUp:   {},
}

// After is the phase of a replica in phase p to which e has happened. False: e cannot happen to it, and the phase is
// as it was.
func (p Phase) After(e Event) (Phase, bool) {
	if p == Lost || e == Missing {
		return Lost, true // until another replica is begun in its place
	}
	next, legal := transitions[p][e]
	if !legal {
		return p, false
	}
	return next, true
}
