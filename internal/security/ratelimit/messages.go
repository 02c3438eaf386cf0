package ratelimit

import (
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// These limits apply to messages that a server has not received completely.
const (
	// messageTime is the time within which a message must arrive completely.
	messageTime = 2 * time.Minute
	// unknownBytesMax is the number of bytes that a connection may take up as long as no caller of the store was
	// identified on it.
	unknownBytesMax = 64 << 10
	// A frame takes more memory than the data in it. It needs frameBytes for an entry in a queue, and gRPC's pool
	// provides its buffer in the next larger size. Only for frames of up to pooledBytesMin does the buffer have exactly
	// the size of the frame.
	frameBytes     = 64
	pooledBytesMin = 1 << 10
	pooledBitsMin  = 12 // 4 KiB
	// prefixBytes is the length of the prefix of each message: a compression flag and the message's length.
	prefixBytes = 5
	// endedMax limits how many streams are still remembered after their end, because more data may arrive for them.
	endedMax = 1024
	// firstBytesMin is the size from which the first message of a stream counts as incomplete until more data follows
	// it.
	firstBytesMin = 64 << 10
)

// StreamWindow is the initial flow control window, in bytes, for the streams of a watched server. gRPC sends a window
// update each time that a quarter of the window has been read.
const StreamWindow = 256 << 10

// messages counts how much memory gRPC holds for data that has arrived on one connection and that no handler has read
// yet. Sheaf sees a message only after gRPC has received all of it. To be able to receive the message, gRPC opens the
// stream's window to the length of the message, and opens the connection's window as bytes arrive. The goroutine that
// reads the connection and the one that writes to it use messages concurrently.
//
// To compute the number of bytes that a stream holds, messages looks at both directions of the connection. The length
// prefixes of messages show how much of a message has arrived, and the server's window updates show how much the
// server has read.
type messages struct {
	all   *atomic.Int64 // number of bytes held on all connections of the server
	bytes atomic.Int64  // number of bytes held on this connection
	open  atomic.Int64  // number of streams in the map
	late  func()        // function to be called if a message takes longer than messageTime to arrive
	calls openCalls

	mu      sync.Mutex
	streams map[uint32]*incoming
	ended   int // number of streams in the map that the server has ended already
	closed  bool
	timer   *time.Timer // nil while no bytes are held

	// These fields describe the DATA frame whose payload is arriving. Only the goroutine that reads uses them.
	now     *incoming
	end     bool // whether the frame ends its stream
	padded  bool // whether the frame begins with a byte that gives the length of the padding at its end
	data    int  // number of the frame's data bytes that have not arrived yet
	took    int64
	nowID   uint32
	written outgoing // used only by the goroutine that writes
}

// incoming tracks a stream whose messages take up memory in the server.
type incoming struct {
	prefix  [prefixBytes]byte
	have    int   // number of bytes of the prefix that have arrived
	left    int64 // number of bytes of the message that have not arrived yet
	whole   int   // number of messages that have arrived completely
	message int64 // memory of the incomplete message
	// first is the memory of the first message until more data follows it. Until then the memory stays in use, because
	// gRPC waits for the end of the stream.
	first   int64
	since   time.Time
	unread  int64 // number of bytes that have arrived minus window updates; negative if the window was opened in advance
	memory  int64 // memory of the unread bytes
	counted int64
	ended   bool // whether the server has ended the stream; it then discards data that still arrives
}

// memoryOf returns the amount of memory that gRPC uses for a DATA frame of the given length.
func memoryOf(length int) int64 {
	if length <= pooledBytesMin {
		return int64(length) + frameBytes
	}
	size := max(bits.Len(uint(length-1)), pooledBitsMin)
	if size > pooledBitsMin {
		size = max(size, 14) // gRPC's pool has no buffer sizes between 4 and 16 KiB
	}
	return 1<<size + frameBytes
}

// begin processes the header of a DATA frame, and the data after it as far as it has arrived. It returns true if the
// frame's data must be passed to take. That is not necessary in most calls, whose only message fits completely into
// one frame.
func (m *messages) begin(id uint32, flags byte, length int, rest []byte) bool {
	if flags&flagEndStream != 0 && flags&flagPadded == 0 && length >= prefixBytes && len(rest) >= prefixBytes &&
		int(binary.BigEndian.Uint32(rest[1:])) == length-prefixBytes && m.open.Load() == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stream(id)
	m.now, m.nowID, m.end, m.padded, m.data = s, id, flags&flagEndStream != 0, flags&flagPadded != 0, length
	m.took = memoryOf(length)
	if length == 0 {
		m.over()
		return false
	}
	if !s.ended {
		s.unread += int64(length)
		// Data for which the window was opened in advance does not count as unread. The server reads it immediately, and it
		// counts as part of the incomplete message.
		s.memory += m.took * min(int64(length), max(s.unread, 0)) / int64(length)
		if s.message > 0 {
			s.message += m.took
		}
		m.count(s)
	}
	return true
}

// stream returns the stream with the given number. If the stream is new, it is added first. The caller holds the
// mutex.
func (m *messages) stream(id uint32) *incoming {
	s := m.streams[id]
	if s == nil {
		if m.streams == nil {
			m.streams = map[uint32]*incoming{}
		}
		s = &incoming{}
		m.streams[id] = s
		m.open.Add(1)
	}
	return s
}

// take processes data of the current frame. If last is true, this is the end of the frame.
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

// over is called at the end of the current frame. The caller holds the mutex.
func (m *messages) over() {
	s := m.now
	if m.end {
		// If there was only one message, it is in the hands of the handler, and gRPC holds nothing for the stream. If there
		// were several, gRPC holds those that the handler has not received yet.
		if s.ended || s.whole == 1 && s.message == 0 {
			m.forget(m.nowID)
		}
	}
	m.now = nil
}

// take finds the messages in the data of a stream. The argument b is data from one frame, and memory is the amount of
// memory that the whole frame takes.
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

// holds returns the number of bytes of memory that the stream holds.
func (s *incoming) holds() int64 {
	if s.ended {
		return 0
	}
	return max(s.memory-StreamWindow/4, s.first+s.message, 0)
}

// count updates the totals after the memory of a stream has changed. The caller holds the mutex.
func (m *messages) count(s *incoming) {
	holds := s.holds()
	if m.closed || holds == s.counted {
		return
	}
	m.bytes.Add(holds - s.counted)
	m.all.Add(holds - s.counted)
	s.counted = holds
	if m.timer == nil && holds > 0 {
		m.timer = time.AfterFunc(messageTime, m.look)
	}
}

// forget removes a stream. The caller holds the mutex.
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

// look is called by the timer. It closes the connection if a message takes too long to arrive, and otherwise sets the
// timer for the next check.
func (m *messages) look() {
	m.mu.Lock()
	late, first := false, time.Time{}
	for _, s := range m.streams {
		// A client that has used up its window cannot send the rest of its message until the server has read something. The
		// client must not be punished for that.
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

// close subtracts this connection's bytes from the total, and stops counting.
func (m *messages) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.closed = true
	m.calls.close()
	m.all.Add(-m.bytes.Swap(0))
	if m.timer != nil {
		m.timer.Stop()
	}
}

// reset removes a stream that the client has reset, or that it has ended with a HEADERS frame.
func (m *messages) reset(id uint32) {
	if m.open.Load() == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(id)
}

// outgoing parses the frames that the server writes.
type outgoing struct {
	skip int
	// header has room for a header and for the payload of a WINDOW_UPDATE or RST_STREAM frame.
	header [frameHeaderBytes + 4]byte
	have   int
}

// wrote processes the next bytes that the server writes to the connection.
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
			// The payload matters only for these two types of frames.
			if kind := b[3]; kind != frameWindowUpdate && kind != frameReset {
				m.sent(kind, b[4], streamID(b[5:]), 0)
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
			continue // the payload has yet to come
		}
		w.have = 0
		w.skip = length - (want - frameHeaderBytes)
		m.sent(kind, w.header[4], streamID(w.header[5:]), binary.BigEndian.Uint32(w.header[9:]))
	}
}

// sent processes a frame that the server has written.
func (m *messages) sent(kind, flags byte, id, payload uint32) {
	if kind == frameReset || kind == frameHeaders && flags&flagEndStream != 0 {
		m.calls.end(id)
	}
	if id == 0 || m.open.Load() == 0 && kind != frameReset {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streams[id]
	switch {
	case kind == frameReset:
		// The server has ended a stream before the client has. It discards the data that the client still sends.
		if s = m.stream(id); !s.ended {
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
	case kind == frameData: // the handler responds, so it must have read the first message
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
