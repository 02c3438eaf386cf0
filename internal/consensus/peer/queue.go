package peer

import (
	"slices"
	"sync"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// These are limits on the messages of a queue. The limit on their bytes is in Options.
const (
	queuedMax       = 1 << 16 // maximum number of queued messages of each kind
	messageOverhead = 64      // bytes of memory that a message takes in addition to its encoded size
)

// queue holds the messages to one peer: appends in one list, and all other messages, such as votes, heartbeats and
// responses, in another list. Each list stays in order. The other messages are sent before the appends, because an
// election must not wait until megabytes of appends have been sent. When the queue is full, appends must be lost
// before other messages.
type queue struct {
	bytesMax int64
	wake     chan struct{} // signals that the queue has messages

	mu      sync.Mutex
	urgent  []item
	appends []item
	bytes   int64
	shut    bool // whether messages are refused because the peer is not connected
}

type item struct {
	group uuid.UUID
	m     *raftpb.Message
	bytes int64
}

// fate is the result of queue.push for one message.
type fate uint8

const (
	queued fate = iota
	full
	down
)

func newQueue(bytesMax int64) *queue { return &queue{bytesMax: bytesMax, wake: make(chan struct{}, 1)} }

// isAppend reports whether a message must stay in order with the appends. This is also true of empty appends, because
// a follower refuses an append that overtakes an earlier one.
func isAppend(m *raftpb.Message) bool {
	return m.GetType() == raftpb.MsgApp || m.GetType() == raftpb.MsgSnap
}

func (q *queue) push(group uuid.UUID, m *raftpb.Message) fate {
	it := item{group: group, m: m, bytes: int64(proto.Size(m)) + messageOverhead}
	q.mu.Lock()
	defer q.mu.Unlock()
	// Urgent messages are small and have a higher limit, so they are still accepted when appends no longer are.
	list, limit := &q.urgent, 2*q.bytesMax
	if isAppend(m) {
		list, limit = &q.appends, q.bytesMax
	}
	switch {
	case q.shut:
		return down
	// A single message is accepted regardless of its size, because otherwise a large one would never be accepted.
	case len(*list) >= queuedMax, q.bytes > 0 && q.bytes+it.bytes > limit:
		return full
	}
	*list = append(*list, it)
	q.bytes += it.bytes
	q.signal()
	return queued
}

// take moves messages of about bytesMax bytes in total into batch. It moves at least one message if the queue has any.
func (q *queue) take(batch []item, bytesMax int64) []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, list := range []*[]item{&q.urgent, &q.appends} {
		n := 0
		for ; n < len(*list) && bytesMax > 0; n++ {
			bytesMax -= (*list)[n].bytes
			q.bytes -= (*list)[n].bytes
		}
		batch = append(batch, (*list)[:n]...)
		*list = slices.Delete(*list, 0, n)
		if len(*list) == 0 && cap(*list) > 1024 {
			*list = nil
		}
	}
	if len(q.urgent)+len(q.appends) > 0 {
		q.signal()
	}
	return batch
}

// signal wakes the sender. Called with mu held.
func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close makes the queue refuse messages until open is called, and returns the messages still in the queue.
func (q *queue) close() []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := slices.Concat(q.urgent, q.appends)
	q.urgent, q.appends, q.bytes, q.shut = nil, nil, 0, true
	return left
}

func (q *queue) open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut = false
}

func (q *queue) held() (messages int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.urgent) + len(q.appends), q.bytes
}
