// Package reason defines the reasons of google.rpc.ErrorInfo that shards and gateways send and clients act on.
// record.proto documents for callers what each means and which gRPC code it comes with.
package reason

// Domain is the domain of the reasons.
const Domain = "sheaf.dev"

// Reasons of calls that were certainly not applied, and may succeed later or elsewhere.
const (
	GroupLoading     = "GROUP_LOADING"
	NoLeader         = "NO_LEADER"
	ShardUnreachable = "SHARD_UNREACHABLE"
	Stopping         = "STOPPING"
	NotServing       = "NOT_SERVING"
	WrongShard       = "WRONG_SHARD"
	NotLeader        = "NOT_LEADER"
	Overloaded       = "OVERLOADED"
)

// EtcdUnavailable is the reason of a call that needs etcd, which has not answered or refused. No record was written.
// Where "outcome" in its metadata is "unknown", what an administrative call asked for may have been done.
const EtcdUnavailable = "ETCD_UNAVAILABLE"

// Reasons about a record or a group.
const (
	RecordNotFound  = "RECORD_NOT_FOUND"
	GroupNotFound   = "GROUP_NOT_FOUND"
	VersionNotFound = "VERSION_NOT_FOUND"
	RecordExists    = "RECORD_EXISTS"
	GroupExists     = "GROUP_EXISTS"
	VersionMismatch = "VERSION_MISMATCH"
	RequestIDReused = "REQUEST_ID_REUSED"
	GroupFailed     = "GROUP_FAILED"
	Damaged         = "DAMAGED"
)

// Reasons about space, ranges and the form of a call.
const (
	DiskFull      = "DISK_FULL"
	MemoryFull    = "MEMORY_FULL"
	GroupLimit    = "GROUP_LIMIT"
	QuotaExceeded = "QUOTA_EXCEEDED"
	HashRouting   = "HASH_ROUTING"
	UseDownload   = "USE_DOWNLOAD"
	UseUpload     = "USE_UPLOAD"
	CursorExpired = "CURSOR_EXPIRED"
	BadRange      = "BAD_RANGE"
	SlowReader    = "SLOW_READER"
)

// OutcomeUnknown is the reason of a write that may or may not have been applied.
const OutcomeUnknown = "OUTCOME_UNKNOWN"
