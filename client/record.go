package client

import (
	"context"
	"crypto/rand"
	"errors"
	"hash/crc32"
	"iter"
	"strconv"
	"time"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
)

// Key names a record.
type Key struct {
	// ID is any 64-bit value.
	ID int64
	// Group is required in Named routing and empty in Hash routing.
	Group string
}

// String returns the key as "42" or "group/42".
func (k Key) String() string {
	if k.Group == "" {
		return strconv.FormatInt(k.ID, 10)
	}
	return k.Group + "/" + strconv.FormatInt(k.ID, 10)
}

func (k Key) proto() *recordv1.RecordKey { return &recordv1.RecordKey{Id: k.ID, Group: k.Group} }

// Record is one version of a record.
type Record struct {
	Key        Key
	Version    string // opaque; compare only for equality
	Timestamp  time.Time
	CommitTime time.Time
	Attributes map[string][]byte
	// Size is the length of the data in bytes, even if Data is left out.
	Size    int64
	Deleted bool
	// Data is nil if it was not requested, and for records above 1 MiB in scans (see HasData).
	Data []byte
	// HasData reports whether Data is complete.
	HasData bool
}

func toRecord(r *recordv1.Record) Record {
	return Record{
		Key:     Key{ID: r.GetKey().GetId(), Group: r.GetKey().GetGroup()},
		Version: r.GetVersion(), Timestamp: time.Unix(0, r.GetTimestampUnixNs()),
		CommitTime: time.Unix(0, r.GetCommitTimeUnixNs()),
		Attributes: r.GetAttributes(), Size: r.GetSizeBytes(), Deleted: r.GetDeleted(), Data: r.GetData(),
		HasData: r.DataCrc32C != nil && int64(len(r.GetData())) == r.GetSizeBytes(),
	}
}

// checked is like toRecord, but also verifies the data against the message's CRC, if it has one. The argument what is
// the call that the message answers.
func checked(what *call, r *recordv1.Record) (Record, error) {
	if r.DataCrc32C != nil && (len(r.GetData()) > 0 || r.GetSizeBytes() == 0) {
		if got := crc32.Checksum(r.GetData(), castagnoli); got != r.GetDataCrc32C() {
			return Record{}, checksumError(what.name(), got, r.GetDataCrc32C())
		}
	}
	return toRecord(r), nil
}

// PutOptions are the options of Put, Upload and BatchPut. The zero value puts unconditionally.
type PutOptions struct {
	// IfVersion makes the put succeed only if IfVersion is the newest version of the record. Otherwise the error is
	// ErrVersionMismatch.
	IfVersion string
	// IfAbsent makes the put succeed only if the record does not exist. Otherwise the error is ErrExists.
	IfAbsent bool
	// Timestamp is the record's timestamp. The default is the commit time.
	Timestamp time.Time
	// Attributes have at most 64 KiB in total.
	Attributes map[string][]byte
	// RequestID has 16 bytes. If the caller repeats a write, it must pass the same RequestID each time. If it is nil,
	// the client creates a new one for this call.
	RequestID []byte
}

// PutResult is the result of a durable write.
type PutResult struct {
	Version    string
	CommitTime time.Time
	// Size is the length of the data in bytes. CRC32C is the CRC-32C (Castagnoli) of the data, confirmed by the server.
	Size   int64
	CRC32C uint32
	// Repeated means that an earlier attempt with the same request id was applied. Version is then the version that the
	// earlier attempt created.
	Repeated bool
}

const requestIDBytes = 16

// NewRequestID creates a request id from 16 random bytes.
func NewRequestID() []byte { return newRequestIDs(1) }

// newRequestIDs creates n request ids, one after another in the same slice.
func newRequestIDs(n int) []byte {
	ids := make([]byte, n*requestIDBytes)
	_, _ = rand.Read(ids) // never returns an error, see its documentation
	return ids
}

// orZero returns the caller's options, or the zero value if options is nil.
func orZero[T any](options *T) (o T) {
	if options != nil {
		o = *options
	}
	return o
}

func (o *PutOptions) condition() *recordv1.WriteCondition {
	switch {
	// An empty condition makes the server refuse the request, and its error names the field.
	case o.IfVersion != "" && o.IfAbsent:
		return &recordv1.WriteCondition{}
	case o.IfVersion != "":
		return &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfVersion{IfVersion: o.IfVersion}}
	case o.IfAbsent:
		return &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfAbsent{IfAbsent: true}}
	}
	return nil
}

func (o *PutOptions) requestID() []byte {
	if o.RequestID != nil {
		return o.RequestID
	}
	return NewRequestID()
}

func timestamp(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	return new(t.UnixNano())
}

// putRequest is a request together with the values that it points to, so that they take one allocation.
type putRequest struct {
	message recordv1.PutRequest
	key     recordv1.RecordKey
	sum     uint32
}

// fill fills in the request. It sets the request id to id, unless the options have one.
func (r *putRequest) fill(key Key, data []byte, o *PutOptions, id []byte) {
	r.key.Id, r.key.Group = key.ID, key.Group
	r.sum = crc32.Checksum(data, castagnoli)
	m := &r.message
	m.Key, m.DataCrc32C, m.RequestId, m.Data = &r.key, &r.sum, id, data
	if o.RequestID != nil {
		m.RequestId = o.RequestID
	}
	m.Condition, m.TimestampUnixNs, m.Attributes = o.condition(), timestamp(o.Timestamp), o.Attributes
}

func toPutResult(what *call, r *recordv1.PutResponse, sum uint32, size int64) (PutResult, error) {
	result := PutResult{
		Version: r.GetVersion(), CommitTime: time.Unix(0, r.GetCommitTimeUnixNs()), Size: size, CRC32C: sum,
		Repeated: r.GetRepeated(),
	}
	if r.GetDataCrc32C() != sum {
		return result, checksumError(what.name(), r.GetDataCrc32C(), sum)
	}
	return result, nil
}

// check returns an error that names the first invalid option, or nil if all options are valid.
// The argument what is the call with these options.
func (o *PutOptions) check(what *call) error {
	if t := o.Timestamp; !t.IsZero() && !time.Unix(0, t.UnixNano()).Equal(t) {
		return invalid(what.name(), "Timestamp is "+t.String()+", it must lie between the years 1678 and 2262")
	}
	if o.IfVersion != "" && o.IfAbsent {
		return invalid(what.name(), "IfVersion and IfAbsent exclude one another")
	}
	if o.RequestID != nil && len(o.RequestID) != requestIDBytes {
		return invalid(what.name(), "RequestID has "+strconv.Itoa(len(o.RequestID))+" bytes, it must have 16")
	}
	return nil
}

// Put stores one version of a record. It returns when the version is durable on a quorum of the group's copies. It uses
// Upload for data above 1 MiB.
func (c *Client) Put(ctx context.Context, key Key, data []byte, options *PutOptions) (PutResult, error) {
	request := &putRequest{}
	what := call{op: "put", key: &key, write: true, epoch: &request.message.RoutingEpoch}
	o := orZero(options)
	if err := o.check(&what); err != nil {
		return PutResult{}, err
	}
	if len(data) > putBytesMax {
		return c.putLarge(ctx, key, data, o)
	}
	request.fill(key, data, &o, NewRequestID())
	answer, err := unary(ctx, c, what, recordv1.NewRecordServiceClient, recordv1.RecordServiceClient.Put,
		&request.message)
	if err != nil {
		return PutResult{}, err
	}
	return toPutResult(&what, answer, request.sum, int64(len(data)))
}

// GetOptions are the options of Get.
type GetOptions struct {
	// Version is the version to read. The default is the newest version.
	Version string
	// View is the ID of a view, to read the record as it was then. It cannot be combined with Version. Get returns
	// ErrViewExpired if the view has ended.
	View string
	// MetadataOnly omits the data.
	MetadataOnly bool
	// BytesMax is the size of the largest record that Get reads into memory. The default is 64 MiB. For a larger record
	// the error is ErrTooLarge. Get always reads records up to 1 MiB.
	BytesMax int64
}

// Get reads the newest version of a record, or the version in options. It returns ErrNotFound if the record or the
// version does not exist.
func (c *Client) Get(ctx context.Context, key Key, options *GetOptions) (Record, error) {
	o := orZero(options)
	request := &recordv1.GetRequest{Key: key.proto(), Version: o.Version, MetadataOnly: o.MetadataOnly,
		View: o.View}
	what := call{op: "get", key: &key, epoch: &request.RoutingEpoch}
	answer, err := unary(ctx, c, what, recordv1.NewRecordServiceClient, recordv1.RecordServiceClient.Get, request)
	if err == nil {
		return checked(&what, answer.GetRecord())
	}
	isSmall := o.BytesMax > 0 && o.BytesMax <= putBytesMax
	if e := newError(what.name(), err, false); e.Reason != reason.UseDownload || isSmall {
		return Record{}, err
	}
	return c.getLarge(ctx, what.name(), key, o)
}

// DeleteOptions are the options of Delete.
type DeleteOptions struct {
	IfVersion string    // as in PutOptions
	Timestamp time.Time // as in PutOptions
	RequestID []byte    // as in PutOptions
}

// DeleteResult is the result of a durable delete.
type DeleteResult struct {
	// Existed reports whether the record existed. If not, nothing was written, and Version is empty.
	Existed    bool
	Version    string
	CommitTime time.Time
	Repeated   bool // as in PutResult
}

// Delete deletes a record. Deleting an absent record succeeds.
func (c *Client) Delete(ctx context.Context, key Key, options *DeleteOptions) (DeleteResult, error) {
	request := &recordv1.DeleteRequest{}
	what := call{op: "delete", key: &key, write: true, epoch: &request.RoutingEpoch}
	given := orZero(options)
	o := PutOptions{IfVersion: given.IfVersion, Timestamp: given.Timestamp, RequestID: given.RequestID}
	if err := o.check(&what); err != nil {
		return DeleteResult{}, err
	}
	request.Key, request.RequestId = key.proto(), o.requestID()
	request.Condition, request.TimestampUnixNs = o.condition(), timestamp(o.Timestamp)
	answer, err := unary(ctx, c, what, recordv1.NewRecordServiceClient, recordv1.RecordServiceClient.Delete, request)
	if err != nil {
		return DeleteResult{}, err
	}
	result := DeleteResult{Existed: answer.GetExisted(), Version: answer.GetVersion(), Repeated: answer.GetRepeated()}
	if answer.GetCommitTimeUnixNs() != 0 {
		result.CommitTime = time.Unix(0, answer.GetCommitTimeUnixNs())
	}
	return result, nil
}

// Versions yields the retained versions of a record without their data, newest first. They include deletes. An error
// ends the sequence.
func (c *Client) Versions(ctx context.Context, key Key) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		request := &recordv1.ListVersionsRequest{Key: key.proto()}
		for {
			answer, err := unary(ctx, c, call{op: "list versions of", key: &key, epoch: &request.RoutingEpoch},
				recordv1.NewRecordServiceClient, recordv1.RecordServiceClient.ListVersions, request)
			if err != nil {
				yield(Record{}, err)
				return
			}
			for _, r := range answer.GetVersions() {
				if !yield(toRecord(r), nil) {
					return
				}
			}
			if request.PageToken = answer.GetNextPageToken(); request.GetPageToken() == "" {
				return
			}
		}
	}
}

// Find looks for an id in all groups. It returns one record without data for each group that holds the id. It fails
// with ErrUnavailable if any group that could hold it does not respond.
func (c *Client) Find(ctx context.Context, id int64) ([]Record, error) {
	answer, err := unary(ctx, c, call{op: "find " + strconv.FormatInt(id, 10)}, recordv1.NewRecordServiceClient,
		recordv1.RecordServiceClient.Find, &recordv1.FindRequest{Id: id})
	if err != nil {
		return nil, err
	}
	records := make([]Record, 0, len(answer.GetRecords()))
	for _, r := range answer.GetRecords() {
		records = append(records, toRecord(r))
	}
	return records, nil
}

// Named reports whether the store has Named routing, where each key names its group. In Hash routing the id determines
// the group.
func (c *Client) Named(ctx context.Context) (named bool, err error) {
	message, err := do(ctx, c, call{op: "ask for the routing"}, askRouting)
	return message.GetMode() == recordv1.RoutingMode_ROUTING_MODE_NAMED, err
}

// StoreUUID returns the UUID of the store. Each store has its own, and keeps it as long as it exists.
func (c *Client) StoreUUID(ctx context.Context) (string, error) {
	message, err := do(ctx, c, call{op: "ask for the store"}, askRouting)
	return message.GetStoreUuid(), err
}

// CreateGroup creates a group of Named routing. It returns ErrExists if the group exists.
func (c *Client) CreateGroup(ctx context.Context, group string) error {
	_, err := unary(ctx, c, call{op: "create group " + group}, recordv1.NewAdminServiceClient,
		recordv1.AdminServiceClient.CreateGroup, &recordv1.CreateGroupRequest{Group: group})
	return err
}

// DeleteGroup deletes an empty group in a store with Named routing. It returns ErrGroupNotEmpty if the group is not
// empty. Tombstones that are not yet compacted also count, and so do request ids from the last minutes. It returns
// ErrGroupNotFound if there is no such group. It needs the verb admin-write. After any other error the group may be
// deleted.
//
// DeleteGroup first queries the UUID of the group that has the name, and then deletes only that group, even if the call
// has to be repeated. It returns nil once that group no longer exists, even if another client has deleted it. A later
// group of the same name is a different group, which DeleteGroup does not touch. A new call of DeleteGroup may delete
// it.
func (c *Client) DeleteGroup(ctx context.Context, group string) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	ask := func(request *recordv1.DeleteGroupRequest) (*recordv1.DeleteGroupResponse, error) {
		return unary(ctx, c, call{op: "delete group " + group}, recordv1.NewAdminServiceClient,
			recordv1.AdminServiceClient.DeleteGroup, request)
	}
	found, err := ask(&recordv1.DeleteGroupRequest{Group: group, ResolveOnly: true})
	// If the response has no UUID, the server is too old for the field ResolveOnly, and has already deleted the group.
	if err != nil || found.GetGroupUuid() == "" {
		return err
	}
	_, err = ask(&recordv1.DeleteGroupRequest{Group: group, GroupUuid: found.GetGroupUuid()})
	if errors.Is(err, ErrGroupNotFound) { // deleted by an earlier attempt without a response, or by another client
		return nil
	}
	return err
}
