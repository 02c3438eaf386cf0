package serve

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// notOpened returns the error for a signed value that was received from the caller, if the store did not issue the
// value to this caller, or issued it too long ago.
func notOpened(field string, err error) error {
	if errors.Is(err, access.ErrOutdated) {
		return answer.Fail(codes.OutOfRange, reason.CursorExpired, "%s: is %v: begin again", field, err)
	}
	return answer.Invalid(field, "is %v", err)
}

// scanRecordsMax bounds the number of records in one message of Scan, for records with small data or none.
const scanRecordsMax = 4096

// groupsToScan checks group names, and whether the caller may scan these groups. Without names, it returns all groups
// of this shard.
func (s *Server) groupsToScan(ctx context.Context, asked []string) ([]string, error) {
	if len(asked) == 0 {
		if err := access.May(ctx, access.Scan, ""); err != nil {
			return nil, err
		}
	}
	for _, name := range asked {
		if err := access.May(ctx, access.Scan, name); err != nil {
			return nil, err
		}
	}
	all, known := s.shard.Groups()
	if !known {
		return nil, answer.Loading("(all)", 0)
	}
	if len(asked) == 0 {
		return all, nil
	}
	names := slices.Clone(asked)
	slices.Sort(names)
	for i, name := range names {
		if err := s.validGroup(name, "groups"); err != nil {
			return nil, err
		}
		if i > 0 && names[i-1] == name {
			return nil, answer.Invalid("groups", "names group %s twice", name)
		}
	}
	return names, nil
}

// Scan implements RecordService. Damaged entries do not end a scan: all intact records are sent first, and then the
// scan ends with DATA_LOSS.
func (s *recordServer) Scan(in *recordv1.ScanRequest, stream recordv1.RecordService_ScanServer) error {
	return s.scan(in, stream, recordv1.RecordService_Scan_FullMethodName)
}

// scan handles a Scan, which counts as a call of the given method.
func (s *recordServer) scan(in *recordv1.ScanRequest, stream recordv1.RecordService_ScanServer, method string) error {
	sc := &scan{
		server: s.Server, stream: stream, method: s.metrics.method(method), metadataOnly: in.GetMetadataOnly(),
		held:    message.HeldOf(stream.Context()),
		sizeMax: scanSizeFirst, sent: make(chan error, 1),
	}
	defer sc.release()
	at, groups, err := sc.begin(in)
	if err != nil {
		return err
	}
	damaged := at.Damaged
	for {
		if at.Group != "" {
			at.Damaged = damaged
			if err := sc.group(stream.Context(), &at, in.GetRoutingEpoch()); err != nil {
				return err
			}
			damaged = at.Damaged
		}
		if len(groups) == 0 {
			break
		}
		at = cursor.Cursor{Kind: cursor.Resume, Group: groups[0], All: at.All, Own: true}
		if sc.view != uuid.Nil {
			at.Scan, at.View, at.Own = sc.view, true, false
		}
		groups = groups[1:]
	}
	if sc.damage != nil {
		return answer.Of(sc.damage, answer.Where{Group: sc.damage.Damage.Group, ID: sc.damage.ID})
	}
	if damaged {
		return answer.ScanDamaged()
	}
	return nil
}

// scan is the state of one Scan call.
type scan struct {
	server       *Server
	stream       recordv1.RecordService_ScanServer
	method       *methodMetrics
	metadataOnly bool
	view         uuid.UUID           // view that is scanned; zero: new snapshots, or those of a cursor or split
	damage       *format.DamageError // the first damage found

	held    *message.Held
	out     recordv1.ScanResponse
	records []*recordv1.Record // reused for each message
	sums    []*uint32          // checksums of the records
	arena   *[]byte            // data of one message's records; from message.Pool
	size    int64              // upper bound on the message's encoded size
	sizeMax int64              // size limit for a message with several records
	encoded int64              // memory that an encoded message may take

	tenant *quota.Tenant // tenant of the group that is being read
	begun  bool          // the scan has entered its first group; later groups wait for quotas instead of being refused

	turn    time.Time  // when the current turn began
	sending bool       // a goroutine is sending the message in the field out
	sent    chan error // receives the result of sending; its capacity is 1
	taken   int        // the capacity of the arena if the stream has taken it with the message that it sent
	look    *time.Timer
}

// begin returns the position at which the scan begins, and the groups that follow it. If the position names no group,
// the scan begins with the first of these groups.
func (sc *scan) begin(in *recordv1.ScanRequest) (at cursor.Cursor, groups []string, err error) {
	var v answer.Violations
	given := 0
	for _, set := range []bool{in.GetGroup() != "", len(in.GetSplit()) > 0, len(in.GetCursor()) > 0} {
		if set {
			given++
		}
	}
	if given > 1 {
		v.Add("cursor", "group, split and cursor exclude one another")
		return at, nil, v.Err()
	}
	if in.GetView() != "" && len(in.GetSplit())+len(in.GetCursor()) > 0 {
		return at, nil, answer.Invalid("view", "excludes split and cursor, which name their view")
	}
	if given == 1 && in.GetGroup() == "" {
		return sc.resume(in)
	}
	if err := sc.take(); err != nil {
		return at, nil, err
	}
	if in.GetView() != "" {
		id, valid := viewID(in.GetView(), &v)
		if !valid {
			return at, nil, v.Err()
		}
		sc.view = id
	}
	if in.GetGroup() != "" {
		at.Own = true
		if err := sc.server.validGroup(in.GetGroup(), "group"); err != nil {
			return at, nil, err
		}
		return at, []string{in.GetGroup()}, access.May(sc.stream.Context(), access.Scan, in.GetGroup())
	}
	groups, err = sc.server.groupsToScan(sc.stream.Context(), nil)
	at.All = true
	return at, groups, err
}

// resume returns the same results as begin, for a request that has a split or a cursor.
func (sc *scan) resume(in *recordv1.ScanRequest) (at cursor.Cursor, groups []string, err error) {
	field, value, kind := "cursor", in.GetCursor(), cursor.Resume
	if len(in.GetSplit()) > 0 {
		field, value, kind = "split", in.GetSplit(), cursor.Split
	}
	if value, err = access.Open(sc.stream.Context(), value); err != nil {
		return at, nil, notOpened(field, err)
	}
	at, err = cursor.Decode(value)
	if err == nil && at.Kind != kind {
		err = cursor.ErrBad
	}
	if err != nil {
		return at, nil, answer.Invalid(field, "is %v", err)
	}
	if err := sc.server.validGroup(at.Group, field); err != nil {
		return at, nil, err
	}
	if err := access.May(sc.stream.Context(), access.Scan, at.Group); err != nil {
		return at, nil, err
	}
	if at.View {
		sc.view = at.Scan
	}
	if at.All {
		all, err := sc.server.groupsToScan(sc.stream.Context(), nil)
		if err != nil {
			return at, nil, err
		}
		for _, name := range all {
			if name > at.Group {
				groups = append(groups, name)
			}
		}
	}
	return at, groups, sc.take()
}

// group scans one group from a position, and advances the position past the records that were sent.
func (sc *scan) group(ctx context.Context, at *cursor.Cursor, epoch uint64) error {
	s := sc.server
	if at.Through > 0 && at.After == at.Through {
		return nil // this group's scan has already ended
	}
	w := answer.Where{Group: at.Group}
	sv, err := s.shard.Group(ctx, at.Group, epoch)
	if err != nil {
		return err
	}
	if err := sc.enter(ctx, sv, w); err != nil {
		return err
	}
	defer func() {
		leave(sc.tenant, 0)
		sc.tenant = nil
	}()
	if at.View {
		return sc.inView(ctx, sv, at, w)
	}
	if at.Scan == [16]byte{} {
		if err := sc.open(ctx, sv, at); err != nil {
			return answer.Of(err, w)
		}
	}
	if err := sv.Log().EnterScan(at.Scan); err != nil {
		return answer.Of(err, w)
	}
	defer sv.Log().LeaveScan(at.Scan)
	if at.Own {
		s.scans.use(sv.Log(), at.Scan)
	}
	if err := sc.readAll(ctx, sv, at, at.Scan); err != nil {
		return answer.Of(err, w)
	}
	if at.Own {
		s.scans.done(sv.Log(), at.Scan)
	}
	return nil
}

// readAll reads the group from a position to the end of the position's range, in a snapshot that the caller has
// entered.
func (sc *scan) readAll(ctx context.Context, sv Group, at *cursor.Cursor, id group.ScanID) error {
	at.Kind = cursor.Resume
	for ended := false; !ended; {
		var err error
		ended, err = sc.read(ctx, sv, at, id)
		if err == nil || errors.Is(err, group.ErrCursorExpired) { // a scan of a view goes on in another snapshot
			if failed := sc.flush(); failed != nil {
				return failed
			}
		}
		if err != nil {
			return err
		}
	}
	at.After = at.Through
	return sc.send(at)
}

// enter must be called before the scan reads a group. If the tenant's quotas are used up, the scan is refused if this
// is its first group, and otherwise waits.
func (sc *scan) enter(ctx context.Context, sv Group, w answer.Where) (err error) {
	t := tenantOf(sv, sc.view != uuid.Nil)
	if !sc.begun {
		sc.begun = true
		sc.tenant, err = enter(ctx, t, w, 0)
		return err
	}
	if t != nil {
		if err := t.Await(ctx, 0); err != nil {
			return answer.Of(err, w)
		}
		sc.tenant = t
	}
	return nil
}

// read reads the group from a position. If ended is true, it has reached the end of the group. Otherwise it has
// released the log early, because the caller does not take a message, or because other scans wait for their turn. The
// next call then continues from the position.
func (sc *scan) read(ctx context.Context, sv Group, at *cursor.Cursor, id group.ScanID) (ended bool, err error) {
	s := sc.server
	if err := s.reading.begin(ctx); err != nil {
		return false, err
	}
	defer s.reading.end()
	sc.turn = time.Now()
	for rec, err := range sv.Log().Scan(ctx, id, at.After, at.Through, sc.metadataOnly) {
		var damage *format.DamageError
		if errors.As(err, &damage) {
			at.Damaged = true
			if sc.damage == nil {
				sc.damage = damage
			}
			continue
		}
		if err != nil {
			return false, err
		}
		if added, err := sc.add(at, &rec); err != nil || !added {
			return false, err
		}
		if s.isStopping() {
			return false, answer.Stopping()
		}
	}
	return true, ctx.Err()
}

// open takes a snapshot of a group, and sets the position to its beginning.
func (sc *scan) open(ctx context.Context, sv Group, at *cursor.Cursor) error {
	if err := sv.Barrier(ctx); err != nil {
		return err
	}
	id, err := sv.Log().OpenScan(ScanTTL)
	if err != nil {
		return err
	}
	info, err := sv.Log().ScanInfo(id)
	if err != nil {
		return err
	}
	at.Scan, at.After, at.Through = id, 0, info.Index
	return nil
}

// scanCloser closes the snapshots that Scan itself has opened, some time after they were read to the end. They stay
// open for that time because the caller may not have received the last message, and may continue with a cursor.
type scanCloser struct {
	mu    sync.Mutex
	ended map[scanKey]time.Time
}

// scanKey identifies the snapshot of a scan.
type scanKey struct {
	log *group.Log
	id  group.ScanID
}

// ScanGrace is how long a snapshot stays open after a scan has read it to the end. In that time, the caller may
// continue from a cursor, because it may not have received the last message.
const ScanGrace = time.Minute

func (c *scanCloser) use(log *group.Log, id group.ScanID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ended, scanKey{log, id})
}

func (c *scanCloser) done(log *group.Log, id group.ScanID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended[scanKey{log, id}] = time.Now()
}

// expire closes the snapshots of the scans that ended at least grace ago.
func (c *scanCloser) expire(grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, at := range c.ended {
		if time.Since(at) >= grace {
			key.log.CloseScan(key.id)
			delete(c.ended, key)
		}
	}
}

// turns bounds how many scans read their log at the same time, because each of them holds buffers of the log, up to
// group.ScanBufferBytes if it reads ahead. Other scans queue. The type is safe for concurrent use.
type turns struct {
	slots   chan struct{}
	waiting atomic.Int64
}

// turnTime is how long a scan continues to read while others queue.
const turnTime = 500 * time.Millisecond

func newTurns(most int) *turns { return &turns{slots: make(chan struct{}, most)} }

// begin waits for a turn. If it returns nil, the caller must call end.
func (t *turns) begin(ctx context.Context) error {
	select {
	case t.slots <- struct{}{}:
		return nil
	default:
	}
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	select {
	case t.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end passes the turn to the scan that has waited longest.
func (t *turns) end() { <-t.slots }

// wanted reports whether other scans wait for a turn.
func (t *turns) wanted() bool { return t.waiting.Load() > 0 }
