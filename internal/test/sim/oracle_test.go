package sim

// oracle is a condition that must hold.
type oracle string

// These are the oracles.
const (
	oracleOneLead oracle = "in each term one leads"
	oracleAgree   oracle = "the replicas agree on every entry, and apply them in order"
	oracleAsked   oracle = "nothing is applied that nobody asked for"
	oracleOnce    oracle = "each request is applied once"
	oracleKept    oracle = "what is acknowledged, or applied, is kept"
	oracleRead    oracle = "a read gives what was put"
	oracleLinear  oracle = "there is one order of the calls that fits what every client saw"
	oracleDisk    oracle = "disks are as the log says, but where bytes rot"
	oracleDamaged oracle = "who knew that it is damaged does not come to lead"
	oracleRepair  oracle = "what is damaged can be repaired"
	oraclePast    oracle = "a read as of an index gives what was there then"
	oracleHeld    oracle = "what is held can be read"
	oracleEnd     oracle = "a healed group comes to an end"
)

// violation describes a violation that an oracle has found.
type violation struct {
	oracle oracle
	what   string
}

func (v violation) String() string { return string(v.oracle) + ": " + v.what }
