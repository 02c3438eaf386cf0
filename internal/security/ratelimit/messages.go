package ratelimit

import (
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of the messages that a server holds because they have not come to their end.
const (
	// messageTime is the longest time for which a message may be on its way.
	messageTime = 2 * time.Minute
	// unknownBytesMax is how much a connection may hold on which no caller of the store was identified.
	unknownBytesMax = 64 << 10
	// A frame takes more memory than its data: its entry in a queue, and a buffer that is the next larger one of
	// gRPC's pool. Smaller frames than pooledBytesMin have a buffer of their own.
	frameBytes     = 64
	pooledBytesMin = 1 << 10
	pooledBitsMin  = 12 // 4 KiB
	// prefixBytes stand before each message: a flag of compression and the length.
	prefixBytes = 5
	// endedMax bounds the streams that are remembered because data may still come for them.
	endedMax = 1024
	// firstBytesMin is the size from which a first message that nothing follows counts as one that is on its way.
	firstBytesMin = 64 << 10
)

// StreamWindow is the window with which streams of a watched server begin, in bytes. gRPC gives it back in quarters.
const StreamWindow = 256 << 10

// held is how much memory the messages of a server hold that have not come to their end. Safe for concurrent use.
type held struct {
	bytes atomic.Int64
}

// messages counts the memory that gRPC holds for what a client has sent on one connection and no handler has taken.
// gRPC takes in a whole message before anything of Sheaf sees it. For that it opens the window of the stream as wide
// as the message is long, and gives the window of the connection back as bytes come. The reader of the connection and
// its writer use it concurrently.
//
// Both directions show what a stream holds: the lengths before messages, which say how much of one is there;
// and the windows that the server gives back, which say what it has read.
type messages struct {
	all   *held
	bytes atomic.Int64 // of this connection
	open  atomic.Int64 // streams that are known
	late  func()       // a message is on its way for longer than messageTime

	mu      sync.Mutex
	streams map[uint32]*incoming
	ended   int // streams of these that the server has ended
	closed  bool
	timer   *time.Timer // nil: nothing is on its way

	// the frame of data that is being read; used only by the reader
	now     *incoming
	end     bool // it ends its stream
	padded  bool // its first byte says how many of its last bytes are no data
	data    int  // bytes of data that are left of it
	took    int64
	nowID   uint32
	written outgoing // used only by the writer
}

// incoming is a stream of which something is held.
type incoming struct {
	prefix  [prefixBytes]byte
	have    int   // bytes of the prefix
	left    int64 // bytes of the message that are to come
	whole   int   // number of messages that have come
	message int64 // memory of the message that is on its way
	first   int64 // memory of a first message that nothing followed: gRPC waits for the end of the stream
	since   time.Time
	unread  int64 // bytes received, less those of windows given back; negative: the window was opened ahead
	memory  int64 // of the unread bytes
	counted int64
	ended   bool // the server has ended the stream, and throws away what still comes
}

// memoryOf returns the memory of a frame of data.
func memoryOf(length int) int64 {
	if length <= pooledBytesMin {
		return int64(length) + frameBytes
	}
	size := max(bits.Len(uint(length-1)), pooledBitsMin)
	if size > pooledBitsMin {
		size = max(size, 14) // gRPC's pool has buffers of 4 and of 16 KiB
	}
	return 1<<size + frameBytes
}

// begin takes the header of a frame of data, and what has come behind it. It reports whether the data is to be given to
// take: not that of a message that is whole and alone on its stream, as those of most calls are.
func (m *messages) begin(id uint32, flags byte, length int, rest []byte) bool {
	if flags&flagEndStream != 0 && flags&flagPadded == 0 && length >= prefixBytes && len(rest) >= prefixBytes &&
		int(binary.BigEndian.Uint32(rest[1:])) == length-prefixBytes && m.open.Load() == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streams[id]
	if s == nil {
		if m.streams == nil {
			m.streams = map[uint32]*incoming{}
		}
		s = &incoming{}
		m.streams[id] = s
		m.open.Add(1)
	}
	m.now, m.nowID, m.end, m.padded, m.data = s, id, flags&flagEndStream != 0, flags&flagPadded != 0, length
	m.took = memoryOf(length)
	if length == 0 {
		m.over()
		return false
	}
	if !s.ended {
		s.unread += int64(length)
		// What the window was opened ahead for is read at once: it is a part of the message that is on its way.
		s.memory += m.took * min(int64(length), max(s.unread, 0)) / int64(length)
		if s.message > 0 {
			s.message += m.took
		}
		m.count(s)
	}
	return true
}

// take takes data of the frame; last: it is all that was left.
func (m *messages) take(b []byte, last bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.now
	if m.padded && len(b) > 0 {
		m.padded = false
		m.data -= 1 + int(b[0])
		b = b[1:]
	}
	n := min(len(b), max(m.data, 0))
	if b, m.data = b[:n], m.data-n; !s.ended {
		s.take(b, m.took)
		m.count(s)
	}
	if last {
		m.over()
	}
}

// over ends a frame. The caller holds the mutex.
func (m *messages) over() {
	s := m.now
	if m.end {
		// The handler has one whole message: there is nothing that gRPC would keep. Of several it keeps those that the
		// handler has not asked for.
		if s.ended || s.whole == 1 && s.message == 0 {
			m.forget(m.nowID)
		}
	}
	m.now = nil
}

// take follows the messages of a stream. memory is that of the frame of which b is a part.
func (s *incoming) take(b []byte, memory int64) {
	for len(b) > 0 {
		if s.left == 0 {
			if s.message == 0 {
				s.message, s.since = memory, time.Now()
			}
			n := copy(s.prefix[s.have:], b)
			s.have += n
			if b = b[n:]; s.have < prefixBytes {
				return
			}
			s.have, s.first = 0, 0
			s.left = int64(binary.BigEndian.Uint32(s.prefix[1:]))
		}
		n := min(s.left, int64(len(b)))
		if s.left, b = s.left-n, b[n:]; s.left > 0 {
			return
		}
		if s.whole++; s.whole == 1 {
			s.first = s.message
		}
		s.message = 0
	}
}

// holds returns the memory that the stream holds.
func (s *incoming) holds() int64 {
	if s.ended {
		return 0
	}
	return max(s.memory-StreamWindow/4, s.first+s.message, 0)
}

// count counts what a stream holds now. The caller holds the mutex.
func (m *messages) count(s *incoming) {
	holds := s.holds()
	if m.closed || holds == s.counted {
		return
	}
	m.bytes.Add(holds - s.counted)
	m.all.bytes.Add(holds - s.counted)
	s.counted = holds
	if m.timer == nil && holds > 0 {
		m.timer = time.AfterFunc(messageTime, m.look)
	}
}

// forget forgets a stream. The caller holds the mutex.
func (m *messages) forget(id uint32) {
	s := m.streams[id]
	if s == nil {
		return
	}
	if s.ended {
		m.ended--
	}
	s.ended = true
	m.count(s)
	delete(m.streams, id)
	m.open.Add(-1)
}

// look closes the connection if a message is on its way for too long.
func (m *messages) look() {
	m.mu.Lock()
	late, first := false, time.Time{}
	for _, s := range m.streams {
		// The client cannot go on where the server reads nothing: its window is used up.
		if s.ended || s.message == 0 && s.first < firstBytesMin || s.unread > StreamWindow/2 {
			continue
		}
		if late = late || time.Since(s.since) >= messageTime; first.IsZero() || s.since.Before(first) {
			first = s.since
		}
	}
	m.timer = nil
	if !late && !m.closed && m.bytes.Load() > 0 {
		again := messageTime
		if !first.IsZero() {
			again -= time.Since(first)
		}
		m.timer = time.AfterFunc(max(again, time.Second), m.look)
	}
	m.mu.Unlock()
	if late {
		m.late()
	}
}

// close counts nothing any more.
func (m *messages) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.closed = true
	m.all.bytes.Add(-m.bytes.Swap(0))
	if m.timer != nil {
		m.timer.Stop()
	}
}

// reset ends a stream that the client has reset, or ended by headers.
func (m *messages) reset(id uint32) {
	if m.open.Load() == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(id)
}

// outgoing follows what the server writes.
type outgoing struct {
	skip   int
	header [frameHeaderBytes + 4]byte // with the payload of a WINDOW_UPDATE or RST_STREAM
	have   int
}

// wrote takes the next bytes that the server writes.
func (m *messages) wrote(b []byte) {
	w := &m.written
	for len(b) > 0 {
		if w.skip > 0 {
			n := min(w.skip, len(b))
			w.skip -= n
			b = b[n:]
			continue
		}
		if w.have == 0 && len(b) >= frameHeaderBytes {
			if kind := b[3]; kind != frameWindowUpdate && kind != frameReset { // most frames, without a copy
				if m.open.Load() > 0 {
					m.sent(kind, b[4], binary.BigEndian.Uint32(b[5:]), 0)
				}
				w.skip = int(binary.BigEndian.Uint32(b) >> 8)
				b = b[frameHeaderBytes:]
				continue
			}
		}
		want := frameHeaderBytes
		if w.have >= frameHeaderBytes {
			want += 4
		}
		n := copy(w.header[w.have:want], b)
		w.have += n
		if b = b[n:]; w.have < want {
			return
		}
		kind, length := w.header[3], int(binary.BigEndian.Uint32(w.header[:4])>>8)
		if want == frameHeaderBytes && (kind == frameWindowUpdate || kind == frameReset) && length == 4 {
			continue // its payload comes
		}
		w.have = 0
		w.skip = length - (want - frameHeaderBytes)
		m.sent(kind, w.header[4], binary.BigEndian.Uint32(w.header[5:]), binary.BigEndian.Uint32(w.header[9:]))
	}
}

// sent takes a frame of the server.
func (m *messages) sent(kind, flags byte, id, payload uint32) {
	if id == 0 || m.open.Load() == 0 && kind != frameReset {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streams[id]
	switch {
	case kind == frameReset:
		// The client has not ended the stream: what it still sends is thrown away.
		if s == nil {
			if m.streams == nil {
				m.streams = map[uint32]*incoming{}
			}
			s = &incoming{}
			m.streams[id] = s
			m.open.Add(1)
		}
		if !s.ended {
			s.ended = true
			m.ended++
			m.count(s)
		}
		if m.ended > endedMax {
			for id, s := range m.streams {
				if s.ended {
					m.forget(id)
				}
			}
		}
	case s == nil || s.ended:
	case (kind == frameHeaders || kind == frameData) && flags&flagEndStream != 0:
		m.forget(id)
	case kind == frameData: // an answer: its handler has taken the first message
		s.first = 0
		m.count(s)
	case kind == frameWindowUpdate:
		if s.unread > 0 {
			s.memory -= s.memory * min(int64(payload), s.unread) / s.unread
		}
		s.unread -= int64(payload)
		m.count(s)
	}
}
