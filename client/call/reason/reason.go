// Package reason defines the reasons of google.rpc.ErrorInfo that shards and gateways send and clients act on.
// record.proto documents the meaning and the gRPC code of each reason.
package reason

// Domain is the domain in the ErrorInfo of these reasons.
const Domain = "sheaf.dev"

// These reasons mean that the call was certainly not applied, and that it may succeed later or at another server.
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

// EtcdUnavailable means that a call needs etcd, and that etcd did not respond or refused the request. No record was
// written. The change that an administrative call requested may have been applied if "outcome" in the metadata is
// "unknown".
const EtcdUnavailable = "ETCD_UNAVAILABLE"

// These reasons concern a record or a group.
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

// These reasons concern space, ranges, and the form of a call.
const (
	DiskFull      = "DISK_FULL"
	MemoryFull    = "MEMORY_FULL"
	GroupLimit    = "GROUP_LIMIT"
	QuotaExceeded = "QUOTA_EXCEEDED"
	HashRouting   = "HASH_ROUTING"
	GroupNotEmpty = "GROUP_NOT_EMPTY"
	UseDownload   = "USE_DOWNLOAD"
	UseUpload     = "USE_UPLOAD"
	CursorExpired = "CURSOR_EXPIRED"
	BadRange      = "BAD_RANGE"
	SlowReader    = "SLOW_READER"
	ViewExpired   = "VIEW_EXPIRED"
)

// OutcomeUnknown is the reason for the failure of a write that may or may not have been applied.
const OutcomeUnknown = "OUTCOME_UNKNOWN"
