package serve

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

const (
	// watchRecordsMax bounds the number of records in one Watch message, for records with small data.
	watchRecordsMax = 1024
	// WatchBytes is the maximum size of the records in one message. It exceeds ResultBytes, because a message ends only
	// after the record with which it reaches ResultBytes.
	WatchBytes = ResultBytes + format.DataBytesMax + format.AttributesBytesMax
	// watchLook is how often an idle watch checks whether this shard still leads the group.
	watchLook = time.Second
	// watchTurn is how long a watch pauses if the shard has reached its limit on response memory.
	watchTurn = 50 * time.Millisecond
)

// Watch implements RecordService. It sends only changes whose entries are committed and applied.
func (s *recordServer) Watch(in *recordv1.WatchRequest, stream recordv1.RecordService_WatchServer) error {
	if in.GetGroup() == "" {
		return answer.Invalid("group", "is required")
	}
	sv, err := s.Asked(stream.Context(), access.Watch, in.GetGroup(), "group")
	if err != nil {
		return err
	}
	w := &watch{server: s.Server, stream: stream, sv: sv, what: answer.Where{Group: sv.Name()}}
	if w.tenant, err = enter(stream.Context(), sv.Tenant(), w.what, 0); err != nil {
		return err
	}
	defer leave(w.tenant, 0)
	if len(in.GetCursor()) > 0 {
		place, err := access.Open(stream.Context(), in.GetCursor())
		if err != nil {
			return notOpened("cursor", err)
		}
		at, err := cursor.DecodePlace(place)
		if err != nil || at.Group != [16]byte(sv.UUID()) {
			return answer.Invalid("cursor", "is no cursor that a Watch of group %s gave out", sv.Name())
		}
		w.at = at.Index
	}
	// After the barrier, the log has applied everything that was acknowledged earlier. So a watch without a cursor
	// begins after all acknowledged writes, and the log contains the position of a cursor even if this leader is new.
	if err := sv.Barrier(stream.Context()); err != nil {
		return answer.Of(err, w.what)
	}
	if len(in.GetCursor()) == 0 {
		w.at, _ = sv.Log().Applied()
	}
	return w.run(stream.Context())
}

// watch is the state of one Watch call.
type watch struct {
	server *Server
	stream recordv1.RecordService_WatchServer
	sv     Group
	what   answer.Where
	at     uint64 // all entries up to this index were read
	tenant *quota.Tenant
}

// run sends the pending changes, then waits for more.
func (w *watch) run(ctx context.Context) error {
	// The first message holds the cursor even if there are no changes. A caller that then reads the group by Scan
	// misses nothing.
	if err := w.send(nil); err != nil {
		return err
	}
	look := time.NewTicker(watchLook)
	defer look.Stop()
	for {
		if err := w.stillHere(); err != nil {
			return err
		}
		applied, changed := w.sv.Log().Applied()
		var turn <-chan time.Time
		if applied != w.at {
			busy, err := w.tell(ctx)
			if err != nil {
				return err
			}
			if !busy {
				continue
			}
			turn, changed = time.After(watchTurn), nil
		}
		select {
		case <-changed:
		case <-turn:
		case <-look.C:
		case <-w.server.stopping.Done():
			return answer.Stopping()
		case <-ctx.Done():
			return answer.Of(ctx.Err(), w.what)
		}
	}
}

// stillHere returns the error that ends the watch, or nil if the watch continues. The watch ends if the shard stops,
// if the group has left this shard, or if this shard may no longer read the group. In the last case the error names
// the shard to call.
func (w *watch) stillHere() error {
	switch {
	case w.server.isStopping():
		return answer.Stopping()
	case !w.sv.IsServed():
		return answer.Fail(codes.Unavailable, reason.NoLeader,
			"group %s is not served here any more: go on from the last cursor", w.sv.Name())
	case w.sv.Replica().Readable() || w.sv.Replica().Status().Leader:
		return nil
	}
	return answer.Of(w.sv.Elsewhere(replica.ErrNoLeader), w.what)
}

// tell sends one message of changes. If the shard has reached its limit on response memory, tell does nothing, and busy
// is true. While the message waits for a slow reader, tell holds only the message and no part of the log.
func (w *watch) tell(ctx context.Context) (busy bool, err error) {
	if err := pass(ctx, w.tenant, 0, 0); err != nil {
		return false, err // pass may wait, so it comes before any memory is held
	}
	held := message.HeldOf(ctx)
	if held.Ask(WatchBytes) != nil {
		return true, nil
	}
	defer func() { _ = held.Ask(0) }() // a decrease is never refused; data that is still being sent remains counted
	records, through, err := w.sv.Log().Changes(ctx, w.at, group.ChangesOptions{RecordsMax: watchRecordsMax,
		BytesMax: ResultBytes})
	switch {
	case errors.Is(err, group.ErrCursorExpired):
		return false, answer.Fail(codes.OutOfRange, reason.CursorExpired,
			"%v: watch without a cursor, then read the group by Scan", err)
	case err != nil && w.stillHere() != nil:
		return false, w.stillHere()
	case err != nil:
		return false, answer.Of(err, w.what)
	}
	parts := w.parts(records)
	if held.Ask(w.size(records, parts)) != nil {
		return true, nil
	}
	applied, _ := w.sv.Log().Applied()
	if len(records) == 0 && applied != through {
		w.at = through
		return false, nil // only superseded records were read; the next message has the cursor
	}
	for i, part := range parts {
		w.at = through
		if i < len(parts)-1 {
			w.at = part[len(part)-1].Index
		}
		if err := w.send(part); err != nil {
			return false, err
		}
	}
	return false, nil
}

// parts divides records into messages; there is at least one part.
func (w *watch) parts(records []group.Record) (parts [][]group.Record) {
	first, size := 0, int64(messageSize)
	for i := range records {
		n := answerSize(w.sv.Name(), &records[i])
		if i > first && size+n > ResultBytes {
			parts = append(parts, records[first:i])
			first, size = i, messageSize
		}
		size += n
	}
	return append(parts, records[first:])
}

// size returns the memory that is held while records are sent in the given parts. It consists of the records
// themselves and twice the largest encoded message, because one message is in the transport while the next one waits.
func (w *watch) size(records []group.Record, parts [][]group.Record) int64 {
	size, largest := int64(0), int64(0)
	for _, part := range parts {
		encoded := int64(messageSize)
		for i := range part {
			encoded += answerSize(w.sv.Name(), &part[i])
		}
		size += encoded
		largest = max(largest, encoded)
	}
	return size + recordHeldBytes*int64(len(records)) + 2*message.RoundUp(largest)
}

// send sends records and the cursor after them.
func (w *watch) send(records []group.Record) error {
	place, err := access.Sign(w.stream.Context(), cursor.Place{Group: w.sv.UUID(), Index: w.at}.Encode(), 0)
	if err != nil {
		return err
	}
	out := &recordv1.WatchResponse{Records: make([]*recordv1.Record, len(records)), Cursor: place}
	data, moved := int64(0), int64(0)
	for i := range records {
		r := &records[i]
		data, moved = data+int64(len(r.Data)), moved+movedOf(r)
		out.Records[i] = &recordv1.Record{}
		if err := fillRecord(out.Records[i], answer.Where{Group: w.sv.Name(), ID: r.ID}, r,
			dataOf(r, false, nil)); err != nil {
			return err
		}
	}
	if err := w.stream.Send(out); err != nil {
		return err
	}
	if w.tenant != nil {
		w.tenant.Moved(moved)
	}
	w.server.metrics.method(recordv1.RecordService_Watch_FullMethodName).moved(len(records), data)
	return nil
}
