package memetcdtest

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// progressEvery is the interval at which etcd reports its revision to a watch that asked for progress and receives no
// events. An etcd of internal/placement/etcd has the same interval.
const progressEvery = time.Minute

// watchStream is one stream of a client, with its watches. Server.mu guards its fields. The channels need no lock.
type watchStream struct {
	watches map[int64]*watch
	next    int64               // the number of the next watch
	out     []*pb.WatchResponse // responses that have not been sent yet

	ready  chan struct{} // holds one element while out is not empty
	broken chan struct{} // closed to abort the stream
	once   sync.Once
}

// watch is one watched range.
type watch struct {
	id       int64
	keys     span
	from     int64 // the first revision whose events the watch receives
	previous bool  // whether events include the state of the key before the change
	progress bool
	quiet    bool // nothing was sent since the last time that progress was due
	hidden   map[mvccpb.Event_EventType]bool
}

func (w *watchStream) breakOff() { w.once.Do(func() { close(w.broken) }) }

// send queues responses for the client. The caller holds Server.mu.
func (w *watchStream) send(answers ...*pb.WatchResponse) {
	w.out = append(w.out, answers...)
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// sendChanges sends changes to the watches whose ranges they are in, with one response for each watch.
func (w *watchStream) sendChanges(s *store, changes []change) {
	for id := range w.next {
		if watch := w.watches[id]; watch != nil {
			if events := watch.matchingEvents(s, changes); len(events) > 0 {
				watch.quiet = false
				w.send(&pb.WatchResponse{Header: s.header(s.revision), WatchId: id, Events: events})
			}
		}
	}
}

// matchingEvents returns those changes that the watch should receive, as events.
func (w *watch) matchingEvents(s *store, changes []change) (events []*mvccpb.Event) {
	for _, c := range changes {
		at := c.event.Kv.ModRevision
		if at < w.from || !w.keys.has(c.event.Kv.Key) || w.hidden[c.event.Type] {
			continue
		}
		event := c.event
		if w.previous && c.before != nil && at-1 >= s.compacted {
			event = &mvccpb.Event{Type: c.event.Type, Kv: c.event.Kv, PrevKv: c.before}
		}
		events = append(events, event)
	}
	return events
}

// Watch implements pb.WatchServer.
func (s service) Watch(stream pb.Watch_WatchServer) error {
	w := &watchStream{watches: map[int64]*watch{}, ready: make(chan struct{}, 1), broken: make(chan struct{})}
	s.mu.Lock()
	s.streams[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, w)
		s.mu.Unlock()
	}()
	received := make(chan error, 1)
	go func() { received <- s.receive(stream, w) }() // returns when the stream has ended
	progress := time.NewTicker(progressEvery)
	defer progress.Stop()
	for {
		s.mu.Lock()
		out := w.out
		w.out = nil
		s.mu.Unlock()
		for _, answer := range out {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		select {
		case <-w.ready:
		case <-progress.C:
			s.mu.Lock()
			w.reportProgress(s.data)
			s.mu.Unlock()
		case err := <-received:
			return err
		case <-w.broken:
			return status.Error(codes.Unavailable, "the watch was broken by the test")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// reportProgress reports the current revision to each watch that has received nothing since the last call.
func (w *watchStream) reportProgress(s *store) {
	for id := range w.next {
		if watch := w.watches[id]; watch != nil && watch.progress {
			if watch.quiet {
				w.send(&pb.WatchResponse{Header: s.header(s.revision), WatchId: id})
			}
			watch.quiet = true
		}
	}
}

// receive handles requests until the client sends no more.
func (s *Server) receive(stream pb.Watch_WatchServer, w *watchStream) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		header := s.data.header(s.data.revision)
		switch {
		case r.GetCreateRequest() != nil:
			s.data.watch(w, r.GetCreateRequest())
		case r.GetCancelRequest() != nil:
			if id := r.GetCancelRequest().WatchId; w.watches[id] != nil {
				delete(w.watches, id)
				w.send(&pb.WatchResponse{Header: header, WatchId: id, Canceled: true})
			}
		case r.GetProgressRequest() != nil:
			// The client receives this after all earlier writes, which are already in w.out.
			w.send(&pb.WatchResponse{Header: header, WatchId: clientv3.InvalidWatchID})
		}
		s.mu.Unlock()
	}
}

// watch begins a watch. One response carries all events since the watch's first revision. If some of these events were
// compacted, the response cancels the watch instead.
func (s *store) watch(w *watchStream, r *pb.WatchCreateRequest) {
	key := r.Key
	if len(key) == 0 {
		key = []byte{0}
	}
	watch := &watch{id: w.next, keys: spanOf(key, r.RangeEnd), from: r.StartRevision, previous: r.PrevKv,
		progress: r.ProgressNotify}
	if !watch.keys.open && len(r.RangeEnd) > 0 && bytes.Compare(key, r.RangeEnd) >= 0 {
		w.send(&pb.WatchResponse{Header: s.header(s.revision), WatchId: clientv3.InvalidWatchID, Created: true,
			Canceled:     true,
			CancelReason: "mvcc: watcher range is empty"})
		return
	}
	watch.hidden = map[mvccpb.Event_EventType]bool{
		mvccpb.Event_PUT:    slices.Contains(r.Filters, pb.WatchCreateRequest_NOPUT),
		mvccpb.Event_DELETE: slices.Contains(r.Filters, pb.WatchCreateRequest_NODELETE),
	}
	w.next++
	w.watches[watch.id] = watch
	w.send(&pb.WatchResponse{Header: s.header(s.revision), WatchId: watch.id, Created: true})
	switch {
	case watch.from == 0:
		watch.from = s.revision + 1
	case watch.from < s.compacted:
		delete(w.watches, watch.id)
		w.send(&pb.WatchResponse{Header: s.header(s.revision), WatchId: watch.id, Canceled: true,
			CompactRevision: s.compacted})
	default:
		if events := watch.matchingEvents(s, s.log); len(events) > 0 {
			w.send(&pb.WatchResponse{Header: s.header(s.revision), WatchId: watch.id, Events: events})
		}
	}
}
