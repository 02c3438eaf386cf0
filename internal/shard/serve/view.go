package serve

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
)

// A read of a view reads a snapshot of the past (group.Log.OpenScanAt). Its index is fixed, so that any copy that has
// applied the index can answer, without asking the leader. The snapshots are opened when they are read for the first
// time, and expire like those of scans.

// groupView is a group as a view sees it, on this shard.
type groupView struct {
	server *Server
	id     uuid.UUID
	served Group
	index  uint64
}

// viewID parses the id of a view in a request. It returns false, and adds an error to v, if the id is not valid.
func viewID(id string, v *answer.Violations) (uuid.UUID, bool) {
	parsed, err := placement.ParseDataViewID(id)
	if err != nil {
		v.Add("view", "%v", err)
	}
	return parsed, err == nil
}

// inView returns a group that this shard serves, as a view sees it.
func (s *Server) inView(ctx context.Context, sv Group, id uuid.UUID) (*groupView, error) {
	index, of, err := s.shard.View(ctx, id, sv.Name())
	if err != nil {
		return nil, err
	}
	if of != sv.UUID() {
		return nil, answer.ViewExpired(id, "group %s was deleted, and created again", sv.Name())
	}
	if sv.Replica().Ended() {
		return nil, answer.ViewExpired(id, "group %s was deleted", sv.Name())
	}
	return &groupView{server: s, id: id, served: sv, index: index}, nil
}

// fail returns the error for the caller.
func (g *groupView) fail(err error, w answer.Where) error {
	return answer.OfView(err, g.id, g.server.opts.Name, w)
}

// viewTries is how often a read opens the view's snapshot again after it has expired.
const viewTries = 3

// with calls do with the view's snapshot. If the snapshot has expired, with opens it again.
func (g *groupView) with(ctx context.Context, do func(group.ScanID) error) error {
	for try := 1; ; try++ {
		scan, err := g.server.views.open(ctx, g)
		if err != nil {
			return err
		}
		err = do(scan)
		if !errors.Is(err, group.ErrCursorExpired) || try == viewTries {
			return err
		}
		g.server.views.forget(g, scan)
	}
}

// get reads one record of the view.
func (g *groupView) get(ctx context.Context, id int64, opts group.GetOptions) (rec group.Record, err error) {
	err = g.with(ctx, func(scan group.ScanID) error {
		rec, err = g.served.Log().GetInScan(scan, id, opts)
		return err
	})
	return rec, err
}

// inView scans a group of a view from a position. If the view's snapshot expires meanwhile, the scan opens it again.
func (sc *scan) inView(ctx context.Context, sv Group, at *cursor.Cursor, w answer.Where) error {
	view, err := sc.server.inView(ctx, sv, at.Scan)
	if at.All && answer.CodeOf(err) == codes.InvalidArgument {
		return nil // a scan of all groups of a view passes over the others
	}
	if err != nil {
		return err
	}
	if at.Through == 0 {
		at.Through = view.index
	}
	err = view.with(ctx, func(id group.ScanID) error {
		if err := sv.Log().EnterScan(id); err != nil {
			return err
		}
		defer sv.Log().LeaveScan(id)
		return sc.readAll(ctx, sv, at, id)
	})
	return view.fail(err, w)
}

// viewScans holds the snapshots of views that are open on this shard. It is safe for concurrent use.
type viewScans struct {
	mu    sync.Mutex
	scans map[viewKey]*viewScan
}

type viewKey struct {
	log *group.Log
	id  uuid.UUID
}

// viewScan is the snapshot of a view, which may still be being opened.
type viewScan struct {
	done chan struct{} // closed when the fields below are set
	scan group.ScanID
	err  error
	used time.Time // guarded by viewScans.mu
}

// open returns the snapshot of a view, and opens it if necessary. Callers that come meanwhile wait.
func (s *viewScans) open(ctx context.Context, g *groupView) (group.ScanID, error) {
	key := viewKey{g.served.Log(), g.id}
	s.mu.Lock()
	one := s.scans[key]
	mine := one == nil
	if mine {
		one = &viewScan{done: make(chan struct{})}
		s.scans[key] = one
	}
	one.used = time.Now()
	s.mu.Unlock()
	if !mine {
		select {
		case <-one.done:
			return one.scan, one.err
		case <-ctx.Done():
			return group.ScanID{}, ctx.Err()
		}
	}
	one.err = errNotOpened
	defer func() { // also if the walk panics, because others may wait for it
		if one.err != nil {
			s.drop(key, one)
		}
		close(one.done)
	}()
	// The walk over the log does not end with the caller that began it.
	one.scan, one.err = key.log.OpenScanAt(g.index, ScanTTL)
	return one.scan, one.err
}

var errNotOpened = errors.New("the snapshot of the view could not be opened: see the log of the shard")

func (s *viewScans) drop(key viewKey, one *viewScan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scans[key] == one {
		delete(s.scans, key)
	}
}

// forget drops a snapshot that has expired.
func (s *viewScans) forget(g *groupView, scan group.ScanID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := viewKey{g.served.Log(), g.id}
	if one := s.scans[key]; one != nil && one.scan == scan {
		delete(s.scans, key)
	}
}

// expire drops the snapshots that were not used for ScanTTL. The log has closed them.
func (s *viewScans) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, one := range s.scans {
		if time.Since(one.used) > ScanTTL {
			delete(s.scans, key)
		}
	}
}
