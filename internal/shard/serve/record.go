package serve

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// recordServer serves RecordService.
type recordServer struct {
	recordv1.UnimplementedRecordServiceServer
	*Server
	get, put *grpc.UnaryServerInfo // method descriptions for interceptors, created once
}

// write is a checked put or delete together with its group.
type write struct {
	where   answer.Where
	served  Group
	crc     uint32     // checksum of the data
	bytes   int64      // number of bytes reserved from Server.bytes
	span    trace.Span // nil if the call is not traced
	pending *replica.Pending
	replica replica.Write
	// reserved is the write's reservation in the quotas of the group's tenant.
	reserved quota.Reserved
	// hurry means that the write must not wait for its reservation, because another put in the same message has already
	// waited without success.
	hurry bool
}

// dispatch passes the write to its group, unless the caller has stopped waiting. If it returns nil, the caller must
// call finish.
func (s *Server) dispatch(ctx context.Context, w *write) error {
	if err := overdue(ctx); err != nil {
		w.bytes = 0
		return err
	}
	if err := w.served.Writable(); err != nil {
		w.bytes = 0
		return err
	}
	if err := w.reserve(ctx); err != nil {
		w.bytes = 0
		return err
	}
	if err := s.bytes.Take(w.bytes, 0); err != nil {
		w.bytes = 0
		w.reserved.Done(true)
		return err
	}
	if s.opts.Tracer != nil {
		w.span = s.spanOf(ctx, w)
		w.replica.Timed = w.span != nil
	}
	w.pending = w.served.Replica().Propose(w.replica)
	if w.pending.Refused() != nil {
		w.pending = s.retry(ctx, w.served, w.replica, w.pending)
	}
	return nil
}

// retry retries a refused write while space is being freed for it. It is a separate function with its own copies of
// the arguments, so that writes that are not refused need no heap allocation.
func (s *Server) retry(ctx context.Context, g Group, w replica.Write, pending *replica.Pending) *replica.Pending {
	first := true
	_ = s.shard.WithSpace(ctx, func() error {
		if !first {
			pending = g.Replica().Propose(w)
		}
		first = false
		return pending.Refused()
	})
	return pending
}

// finish waits for the outcome of a write that dispatch has passed to its group.
func (s *Server) finish(ctx context.Context, w *write) (replica.Result, error) {
	result, err := w.pending.Wait(ctx)
	s.bytes.Add(-w.bytes)
	if w.span != nil {
		s.endSpan(ctx, w, result.Sync, err)
	}
	if err != nil {
		err = answer.Of(w.served.Elsewhere(err), w.where)
		w.reserved.Done(answer.SurelyNotApplied(err))
		return result, err
	}
	w.reserved.Done(result.Repeated)
	return result, nil
}

// apply passes a checked write to its group and waits for the outcome. The call is charged to the quotas of the group's
// tenant.
func (s *Server) apply(ctx context.Context, w *write) (replica.Result, error) {
	tenant, err := enter(ctx, w.served.Tenant(), w.where, w.bytes)
	if err != nil {
		return replica.Result{}, err
	}
	defer leave(tenant, w.bytes)
	if err := s.dispatch(ctx, w); err != nil {
		return replica.Result{}, err
	}
	return s.finish(ctx, w)
}

// common checks the fields that all writes have.
func (w *write) common(v *answer.Violations, prefix string, requestID []byte, condition *recordv1.WriteCondition,
	timestamp *int64) {
	switch len(requestID) {
	case 0:
	case len(w.replica.RequestID):
		copy(w.replica.RequestID[:], requestID)
		if w.replica.RequestID == [16]byte{} {
			v.Add(prefix+"request_id", "is all zeros: choose 16 bytes at random")
		}
	default:
		v.Add(prefix+"request_id", "has %d bytes: give 16 chosen at random, or none", len(requestID))
	}
	if timestamp != nil {
		w.replica.Timestamp, w.replica.HasTime = *timestamp, true
	}
	switch c := condition.GetCondition().(type) {
	case *recordv1.WriteCondition_IfVersion:
		index, err := cursor.ParseVersion(c.IfVersion)
		if err != nil {
			v.Add(prefix+"condition.if_version", "%.40q is not a version that a shard gave out", c.IfVersion)
		}
		w.replica.Condition.IfVersion = index
	case *recordv1.WriteCondition_IfAbsent:
		if !c.IfAbsent {
			v.Add(prefix+"condition.if_absent", "is false: only true is valid")
		}
		w.replica.Condition.IfAbsent = true
	}
}

// attributes checks and encodes attributes.
func (w *write) attributes(v *answer.Violations, prefix string, attributes map[string][]byte) {
	if len(attributes) == 0 {
		return
	}
	encoded, err := format.EncodeAttributes(attributes)
	if err != nil {
		v.Add(prefix+"attributes", "%v", err)
	}
	w.replica.Attributes = encoded
}

// preparePut checks a put. The write keeps the request's data.
func (s *Server) preparePut(ctx context.Context, in *recordv1.PutRequest, w *write) error {
	if len(in.GetData()) > format.DataBytesMax {
		return answer.UseUpload(len(in.GetData()))
	}
	var v answer.Violations
	w.common(&v, "", in.GetRequestId(), in.GetCondition(), in.TimestampUnixNs)
	w.attributes(&v, "", in.GetAttributes())
	w.crc = crc32c.Of(in.GetData())
	if in.DataCrc32C != nil && in.GetDataCrc32C() != w.crc {
		v.Add("data_crc32c", "is %08x, the data that came have %08x: nothing is stored", in.GetDataCrc32C(), w.crc)
	}
	sv, err := s.find(ctx, access.Put, in.GetKey(), in.GetRoutingEpoch(), &v, "key")
	if err := v.Or(err); err != nil {
		return err
	}
	w.served = sv
	w.where = answer.Where{Group: sv.Name(), ID: in.GetKey().GetId()}
	w.replica.ID = in.GetKey().GetId()
	w.replica.Data = in.GetData()
	w.bytes = int64(len(in.GetData()) + len(w.replica.Attributes))
	return nil
}

// putResponse fills in the response to a put. The checksum is that of the request, even for a repeated put, because
// the replica has checked that a repeated put has the same data as the first one.
func (w *write) putResponse(out *recordv1.PutResponse, result replica.Result) {
	out.Version = cursor.Version(result.Index)
	out.CommitTimeUnixNs = result.CommitTime
	out.DataCrc32C = w.crc
	out.Repeated = result.Repeated
}

// Put implements RecordService.
func (s *recordServer) Put(ctx context.Context, in *recordv1.PutRequest) (*recordv1.PutResponse, error) {
	var w write
	if err := s.preparePut(ctx, in, &w); err != nil {
		return nil, err
	}
	result, err := s.apply(ctx, &w)
	if err != nil {
		return nil, err
	}
	s.metrics.put.moved(1, w.bytes)
	out := &recordv1.PutResponse{}
	w.putResponse(out, result)
	return out, nil
}

// Delete implements RecordService.
func (s *recordServer) Delete(ctx context.Context, in *recordv1.DeleteRequest) (*recordv1.DeleteResponse, error) {
	var (
		w write
		v answer.Violations
	)
	w.common(&v, "", in.GetRequestId(), in.GetCondition(), in.TimestampUnixNs)
	if w.replica.Condition.IfAbsent {
		v.Add("condition.if_absent", "makes no sense with Delete")
	}
	sv, err := s.find(ctx, access.Delete, in.GetKey(), in.GetRoutingEpoch(), &v, "key")
	if err := v.Or(err); err != nil {
		return nil, err
	}
	w.served, w.where = sv, answer.Where{Group: sv.Name(), ID: in.GetKey().GetId()}
	w.replica.ID, w.replica.Delete = in.GetKey().GetId(), true
	result, err := s.apply(ctx, &w)
	if err != nil {
		return nil, err
	}
	s.metrics.method(recordv1.RecordService_Delete_FullMethodName).moved(1, 0)
	out := &recordv1.DeleteResponse{
		Version: cursor.Version(result.Index), Existed: result.Existed, Repeated: result.Repeated,
	}
	if result.Index != 0 {
		out.CommitTimeUnixNs = result.CommitTime
	}
	return out, nil
}

// read is a checked read together with its group.
type read struct {
	where   answer.Where
	served  Group
	options group.GetOptions
	view    *groupView // nil: the newest version, or the one of options
}

// prepareGet checks a read.
func (s *Server) prepareGet(ctx context.Context, in *recordv1.GetRequest, r *read) error {
	var v answer.Violations
	err := s.prepareRead(ctx, in, &v, r)
	r.options.MetadataOnly = in.GetMetadataOnly()
	if in.GetView() == "" {
		return v.Or(err)
	}
	id, valid := viewID(in.GetView(), &v)
	if in.GetVersion() != "" {
		v.Add("version", "excludes view")
	}
	if err := v.Or(err); err != nil || !valid {
		return err
	}
	r.view, err = s.inView(ctx, r.served, id)
	return err
}

// barrier waits until the read sees every write that was acknowledged before. A read of a view waits for nothing.
func (r *read) barrier(ctx context.Context) error {
	if r.view != nil {
		return nil
	}
	return r.served.Barrier(ctx)
}

// tenant returns the tenant that the read charges, or nil.
func (r *read) tenant() *quota.Tenant { return tenantOf(r.served, r.view != nil) }

// record reads the record. The record's data may alias options.Buffer.
func (r *read) record(ctx context.Context) (group.Record, error) {
	if r.view != nil {
		return r.view.get(ctx, r.where.ID, r.options)
	}
	return r.served.Log().Get(r.where.ID, r.options)
}

// fail returns the error for the caller of a read that has failed.
func (r *read) fail(err error) error {
	if r.view != nil {
		return r.view.fail(err, r.where)
	}
	return answer.Of(err, r.where)
}

// prepareRead checks the fields that Get and Download have in common. Errors in the request are added to v.
func (s *Server) prepareRead(ctx context.Context, in interface {
	GetKey() *recordv1.RecordKey
	GetRoutingEpoch() uint64
	GetVersion() string
}, v *answer.Violations, r *read) error {
	sv, err := s.find(ctx, access.Get, in.GetKey(), in.GetRoutingEpoch(), v, "key")
	if err == nil && sv != nil {
		r.served, r.where = sv, answer.Where{Group: sv.Name(), ID: in.GetKey().GetId()}
	}
	if version := in.GetVersion(); version != "" {
		var bad error
		if r.options.Index, bad = cursor.ParseVersion(version); bad != nil {
			v.Add("version", "%.40q is not a version that a shard gave out", version)
		}
	}
	return err
}

// get does the same as record, but returns errors for the caller, also for a record that needs Download.
func (r *read) get(ctx context.Context) (group.Record, error) {
	rec, err := r.record(ctx)
	if err != nil {
		return rec, r.fail(err)
	}
	if rec.Blob != nil && !r.options.MetadataOnly {
		return rec, answer.UseDownload(r.where, rec.Size)
	}
	return rec, nil
}

// dataOf returns the checksum of a record's data, or nil if the data is not wanted or not in rec. The checksum is
// stored in sum, or in new memory if sum is nil.
func dataOf(rec *group.Record, metadataOnly bool, sum *uint32) *uint32 {
	if metadataOnly || rec.Deleted || rec.Blob != nil {
		return nil
	}
	if sum == nil {
		sum = new(uint32)
	}
	*sum = crc32c.Of(rec.Data)
	return sum
}

// fillRecord fills in a record's message. If sum is not nil, the message holds the data of rec without a copy. An
// existing key is reused.
func fillRecord(out *recordv1.Record, w answer.Where, rec *group.Record, sum *uint32) error {
	if out.Key == nil {
		out.Key = &recordv1.RecordKey{}
	}
	out.Key.Id, out.Key.Group = rec.ID, w.Group
	out.Version = cursor.Version(rec.Index)
	out.TimestampUnixNs = rec.Timestamp
	out.CommitTimeUnixNs = rec.CommitTime
	out.SizeBytes = rec.Size
	out.Deleted = rec.Deleted
	if len(rec.Attributes) > 0 {
		attributes, err := format.DecodeAttributes(rec.Attributes)
		if err != nil {
			return answer.Of(err, w)
		}
		out.Attributes = attributes
	}
	if sum != nil {
		out.DataCrc32C, out.Data = sum, rec.Data
	}
	return nil
}

// overdue returns an error if the caller of a write no longer waits, and nil otherwise. Such a write must not be
// started, because its caller may already have done something else instead. overdue also recognizes a deadline that has
// passed although its timer has not fired yet, which happens if the process was suspended until after the deadline.
func overdue(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return status.Error(codes.DeadlineExceeded, "the deadline had passed before the write was begun")
	}
	return nil
}

// spanOf begins the span of a write. The span lasts from the moment when the group receives the write until the write
// is acknowledged. It includes the wait for a round, the syncs of this shard and, with several copies, those of a
// majority. spanOf returns nil if the call is not traced.
func (s *Server) spanOf(ctx context.Context, w *write) trace.Span {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return nil
	}
	_, span := s.opts.Tracer.Start(ctx, "commit", trace.WithAttributes(
		attribute.String("sheaf.group", w.where.Group), attribute.String("sheaf.shard", s.opts.Name),
		attribute.Int64("sheaf.bytes", w.bytes)))
	return span
}

// endSpan ends the span of a write with its outcome. The sync of this shard that made the write durable becomes a child
// span.
func (s *Server) endSpan(ctx context.Context, w *write, sync *replica.SyncTimes, err error) {
	if err != nil {
		w.span.SetStatus(otelcodes.Error, err.Error())
	}
	if sync != nil {
		_, below := s.opts.Tracer.Start(trace.ContextWithSpan(ctx, w.span), "sync", trace.WithTimestamp(sync.Began),
			trace.WithAttributes(
				attribute.String("sheaf.group", w.where.Group), attribute.String("sheaf.shard", s.opts.Name)))
		below.End(trace.WithTimestamp(sync.Ended))
	}
	w.span.End()
}
