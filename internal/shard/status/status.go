// Package status is the status that a shard reports: as JSON at /status, as a row of AdminService, and as a sentence.
package status

import (
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/status/page"
)

// Shard is the status of a shard, for people and machines; its JSON is served at /status. It is not the JSON of the
// API's Shard message, because protobuf writes 64-bit numbers as strings and uses other names.
type Shard struct {
	// Summary is the state in a sentence, and what to do.
	Summary    page.Summary `json:"summary"`
	Name       string       `json:"name"`
	Address    string       `json:"address"`
	Version    string       `json:"version"`
	VolumeUUID string       `json:"volumeUUID"`
	StoreUUID  string       `json:"storeUUID"`
	Generation uint64       `json:"generation"`
	Path       string       `json:"path"`
	FileSystem string       `json:"fileSystem"`
	// MountOptions are the options that are in force.
	MountOptions  []string `json:"mountOptions,omitempty"`
	Source        string   `json:"source"`
	Rotational    *bool    `json:"rotational,omitempty"`
	CapacityBytes int64    `json:"capacityBytes"`
	FreeBytes     int64    `json:"freeBytes"`
	ReserveBytes  int64    `json:"reserveBytes"`
	// MemoryNeedBytes was computed before loading. A MemoryLimitBytes of 0 means no limit.
	MemoryNeedBytes  int64   `json:"memoryNeedBytes"`
	MemoryUsedBytes  int64   `json:"memoryUsedBytes"`
	MemoryLimitBytes int64   `json:"memoryLimitBytes"`
	Residency        string  `json:"residency"`
	Epoch            uint64  `json:"routingEpoch"`
	Stopping         bool    `json:"stopping"`
	Load             Load    `json:"load"`
	Groups           []Group `json:"groups"`
	// EtcdSilentSeconds is the time since etcd last answered. It is -1 if etcd has never answered.
	EtcdSilentSeconds float64 `json:"etcdSilentSeconds"`
	// Moves are the copies that are being created here.
	Moves []Move `json:"moves,omitempty"`
	// Uncompacted lists the reasons why superseded bytes are still stored, sorted by bytes, largest first.
	Uncompacted []Uncompacted `json:"uncompacted,omitempty"`
	// Slow lists slow calls and syncs since this process began to serve the volume.
	Slow Slow `json:"slow"`
	// Traffic is what callers did. It is nil if the shard serves no volume.
	Traffic *Traffic `json:"traffic,omitempty"`
	// Strays are groups on the volume that etcd places elsewhere or does not know: they are neither served nor deleted.
	Strays []Stray `json:"strays,omitempty"`
	// VolumeSilent means that the disk blocks without an error; one of the problems says so.
	VolumeSilent bool `json:"volumeSilent,omitempty"`
	// Problems are sentences that say what is wrong and what to do; empty if there is no problem.
	Problems []string `json:"problems,omitempty"`
	// Findings are what sheaf doctor says of this shard, the worst first: these problems, and conclusions from the
	// figures.
	Findings []finding.Finding `json:"findings,omitempty"`
	// State is a recordv1.ShardState in one word. Message says why the shard is in that state and what to do.
	State              string   `json:"state"`
	Message            string   `json:"message,omitempty"`
	WantedFileSystem   string   `json:"wantedFileSystem,omitempty"`
	WantedMountOptions []string `json:"wantedMountOptions,omitempty"`
	WantedStoreUUID    string   `json:"wantedStoreUUID,omitempty"`
	WantedVolumeUUID   string   `json:"wantedVolumeUUID,omitempty"`
	// VolumeShard is the name of the shard in the volume's superblock.
	VolumeShard string `json:"volumeShard,omitempty"`
	Node        string `json:"node,omitempty"`
	Zone        string `json:"zone,omitempty"`
	Domain      string `json:"domain"`
	Medium      string `json:"medium"`

	state recordv1.ShardState
}

// SetState sets the state and its word.
func (st *Shard) SetState(state recordv1.ShardState) { st.state, st.State = state, state.Word() }

// Traffic holds sums over the calls of RecordService that were answered since the shard began to serve its volume. Two
// values of Traffic and the time between them make a rate.
type Traffic struct {
	CallsTotal       int64 `json:"callsTotal"`       // with or without an error
	RecordBytesTotal int64 `json:"recordBytesTotal"` // data of the records that they wrote or read
	// UnaryCallsTotal are the calls with one message each way, and UnarySecondsTotal is the time that they took together.
	UnaryCallsTotal   int64   `json:"unaryCallsTotal"`
	UnarySecondsTotal float64 `json:"unarySecondsTotal"`
}

// Load is the progress of loading.
type Load struct {
	GroupsTotal          int     `json:"groupsTotal"`
	GroupsLoaded         int     `json:"groupsLoaded"`
	GroupsDamaged        int     `json:"groupsDamaged"`
	GroupsFailed         int     `json:"groupsFailed"`
	BytesTotal           int64   `json:"bytesTotal"`
	BytesDone            int64   `json:"bytesDone"`
	BytesPerSecond       float64 `json:"bytesPerSecond"`
	DeviceBytesPerSecond float64 `json:"deviceBytesPerSecond"` // 0: not measured
	DevicePercent        float64 `json:"devicePercent"`        // % of the device's own sequential rate; 0: not measured
	ETASeconds           float64 `json:"etaSeconds"`
	ElapsedSeconds       float64 `json:"elapsedSeconds"`
	Done                 bool    `json:"done"`
}

// Group is the state of one replica.
type Group struct {
	Group           string   `json:"group"`
	UUID            string   `json:"uuid"`
	State           string   `json:"state"`   // Pending, Loading, Serving, Damaged, Failed
	Outcome         string   `json:"outcome"` // Loaded, Truncated, Damaged; empty before
	Message         string   `json:"message,omitempty"`
	Leader          bool     `json:"leader"`
	Records         int64    `json:"records"`
	StoredBytes     int64    `json:"storedBytes"`
	SupersededBytes int64    `json:"supersededBytes"`
	Segments        int      `json:"segments"`
	AppliedIndex    uint64   `json:"appliedIndex"`
	MemoryBytes     int64    `json:"memoryBytes"`
	TruncatedBytes  int64    `json:"cutBytes,omitempty"`
	Damages         []Damage `json:"damages,omitempty"` // those that fit into 64 KiB
	DamagesTotal    int      `json:"damagesTotal,omitempty"`
}

// Damage is one range of bad bytes.
type Damage struct {
	File        string `json:"file"`
	OffsetBytes int64  `json:"offsetBytes"`
	LengthBytes int64  `json:"lengthBytes"`
	What        string `json:"what"`
	// Records is the number of records that are known to be hit. HTTP has no authentication, so it does not reveal their
	// ids. AdminService reveals them to callers who may read the status of the group.
	Records    int  `json:"records,omitempty"`
	IDsUnknown bool `json:"idsUnknown,omitempty"`
}

// Stray is a group's folder that this shard does not serve.
type Stray struct {
	Group  string `json:"group"`
	UUID   string `json:"uuid"`
	Reason string `json:"reason"`
}

// Move is a copy of a group that is being created on this shard.
type Move struct {
	Group          string   `json:"group"`
	From           string   `json:"from,omitempty"` // shard that sends files now
	To             string   `json:"to"`
	Phase          string   `json:"phase"` // Waiting, Files, Entries
	BytesTotal     int64    `json:"bytesTotal"`
	BytesDone      int64    `json:"bytesDone"`
	BytesPerSecond float64  `json:"bytesPerSecond"`
	ETASeconds     *float64 `json:"etaSeconds,omitempty"` // missing: not known
}

// Uncompacted is one reason why superseded bytes are still stored.
type Uncompacted struct {
	Reason string `json:"reason"` // a label value of sheaf_shard_uncompacted_bytes
	Bytes  int64  `json:"bytes"`  // total of all groups
	Groups int    `json:"groups"`
	// Group is the group that has the most of these bytes. Text is what sheaf group compact --why says of these bytes
	// in that group.
	Group string `json:"group"`
	Text  string `json:"text"`
}

// Slow counts slow calls and syncs since the shard started, and lists the newest 32 of each, the newest first.
type Slow struct {
	CallsTotal int64      `json:"callsTotal"` // longer than 1 s; without streams, Verify and Compact
	SyncsTotal int64      `json:"syncsTotal"` // longer than 500 ms
	Calls      []SlowCall `json:"calls,omitempty"`
	Syncs      []SlowSync `json:"syncs,omitempty"`
}

// SlowCall is one slow call.
type SlowCall struct {
	BeganUnixNs int64  `json:"beganUnixNs"`
	DurationNs  int64  `json:"durationNs"`
	Method      string `json:"method"`
	Group       string `json:"group,omitempty"`  // empty: the call is for no group, or the group is not here
	Code        string `json:"code"`             // gRPC code, as in sheaf_shard_calls_total
	Reason      string `json:"reason,omitempty"` // reason in the ErrorInfo
}

// SlowSync is one slow sync of a file.
type SlowSync struct {
	BeganUnixNs int64  `json:"beganUnixNs"`
	DurationNs  int64  `json:"durationNs"`
	Kind        string `json:"kind"`            // kind of file, as in sheaf_shard_sync_duration_seconds
	File        string `json:"file"`            // without its folder
	Group       string `json:"group,omitempty"` // empty: the file belongs to no group, or the group is not served
	Error       string `json:"error,omitempty"` // empty: it succeeded
}
