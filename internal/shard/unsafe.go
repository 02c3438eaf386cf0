package shard

// unsafe is a set of rules that are switched off. Tests use it to prove that they would notice a broken rule.
type unsafe uint32

// These are the rules that can be switched off. Switching off any of them must make an exploration fail.
const (
	unsafeRemnant unsafe = 1 << iota // the remnant of a learner's folder after a kill counts as a replica
	unsafeStop                       // work that fails while the shard stops counts as done
	unsafeDoubt                      // the blob of an upload of unknown outcome is removed
	unsafeScan                       // a scan returns records although damage may hide newer versions
)

func (u unsafe) has(rule unsafe) bool { return u&rule != 0 }
