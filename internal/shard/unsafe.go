package shard

// unsafe switches rules off: tests prove that they would notice.
type unsafe uint32

// The rules that can be switched off. Each of these must make an exploration fail.
const (
	unsafeRemnant unsafe = 1 << iota // what a kill leaves of a learner's folder is taken for a replica that is there
	unsafeStop                       // what fails while the shard stops counts as done
	unsafeDoubt                      // the blob of an upload of unknown outcome is removed
	unsafeScan                       // a scan gives what damage may have superseded
)

func (u unsafe) has(rule unsafe) bool { return u&rule != 0 }
