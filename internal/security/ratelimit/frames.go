package ratelimit

import "encoding/binary"

// These are the frame types of HTTP/2 (RFC 9113, 6).
const (
	frameData          = 0
	frameHeaders       = 1
	frameReset         = 3
	framePing          = 6
	frameWindowUpdate  = 8
	frameContinuation  = 9
	flagEndStream      = 1
	flagPadded         = 8
	frameHeaderBytes   = 9
	clientPrefaceBytes = 24 // length of "PRI * HTTP/2.0 ...", which a client sends first
)

// These are the costs and allowances of frames. The allowances are sufficient for honest clients.
const (
	// continuationBytes is the number of bytes in a CONTINUATION frame that cost one point. This is in addition to the
	// one point for the frame itself. The server decodes these bytes only to discard them, so sending them must have a
	// price.
	continuationBytes = 1 << 10
	// creditFirst is the credit, in points, with which a connection begins. It is meant for the first SETTINGS. It is
	// low, because a client gets it again with each new connection.
	creditFirst = 8
	// creditMax is the maximum number of points that a connection can save up. A client needs them when it cancels
	// several calls at once, for example after hedging or when a web page is closed.
	creditMax = 256
	// resetCost is the cost of a reset, in points. Because each call earns one point, a client may reset half of its
	// calls, no matter how many calls it makes.
	resetCost = 2
	// updatesFree is the number of window updates that a connection may send for free. In addition, one update is free
	// for each updateBytes that the server has written. That is enough, because a client opens its windows only for data
	// that it has received, and even the shortest response has more bytes than that.
	updatesFree = 64
	updateBytes = 8
)

// frames reads all bytes that a client sends on one connection, and counts the frames that honest clients do not send.
// Not safe for concurrent use.
//
//	+---------------+------+-------+-------------+---------+
//	| length (24)   | type | flags | stream (32) | payload |
//	+---------------+------+-------+-------------+---------+
type frames struct {
	skip    uint32                 // number of bytes of the payload or preface that precede the next header
	header  [frameHeaderBytes]byte // header that is being received
	have    int                    // number of bytes of that header that have arrived
	credit  int                    // points that the connection has saved up; at most creditMax
	updates int64                  // number of WINDOW_UPDATE frames that have arrived

	// illegal is true if the client has begun a call with an invalid stream number, for which gRPC closes the
	// connection.
	illegal  bool
	messages *messages // counts the memory of messages; nil in tests that do not count it
	data     bool      // whether the payload of the current frame is passed to messages
}

func newFrames() frames { return frames{skip: clientPrefaceBytes, credit: creditFirst} }

// take processes the next bytes. It returns the number of points by which they exceed the connection's allowance. The
// argument written is the number of bytes that the server has written to the connection so far.
func (f *frames) take(b []byte, written int64) (excess int) {
	for len(b) > 0 {
		if f.skip > 0 {
			n := min(int(f.skip), len(b))
			f.skip -= uint32(n)
			if f.data {
				f.messages.take(b[:n], f.skip == 0)
				f.data = f.skip > 0
			}
			b = b[n:]
			continue
		}
		n := copy(f.header[f.have:], b)
		f.have += n
		b = b[n:]
		if f.have < frameHeaderBytes {
			break
		}
		f.have = 0
		f.skip = binary.BigEndian.Uint32(f.header[:4]) >> 8
		if f.messages != nil {
			f.hold(b)
		}
		excess += f.pay(f.cost(written))
	}
	return excess
}

// hold counts the memory that the server will use for a frame whose header has just arrived. The argument rest is the
// data after the header, as far as it has arrived.
func (f *frames) hold(rest []byte) {
	id, flags := streamID(f.header[5:]), f.header[4]
	switch f.header[3] {
	case frameHeaders:
		f.illegal = !f.messages.calls.begin(id, int64(f.skip)) || f.illegal
		if flags&flagEndStream != 0 {
			f.messages.reset(id)
		}
	case frameReset:
		f.messages.calls.reset(id)
		f.messages.reset(id)
	case frameData:
		f.data = f.messages.begin(id, flags, int(f.skip), rest)
	}
}

// streamID returns the stream number in the first four bytes of b, without the reserved bit, which gRPC also ignores.
func streamID(b []byte) uint32 { return binary.BigEndian.Uint32(b) &^ (1 << 31) }

// cost returns the cost, in points, of a frame whose header has just arrived. If the cost is negative, the connection
// earns points with the frame.
func (f *frames) cost(written int64) int {
	switch f.header[3] {
	case frameHeaders:
		return -1
	case frameReset:
		return resetCost
	case frameData: // frames with data are limited by flow control windows, so only empty ones have a cost
		if f.skip > 0 || f.header[4]&flagEndStream != 0 {
			return 0
		}
		return 1
	case frameWindowUpdate:
		f.updates++
		if f.updates <= updatesFree+written/updateBytes {
			return 0
		}
		return 1
	case frameContinuation:
		return 1 + int(f.skip/continuationBytes)
	case framePing: // gRPC itself limits pings, and closes connections that send too many
		return 0
	}
	return 1 // SETTINGS, PRIORITY, GOAWAY, and unknown types
}

// pay deducts a cost from the credit. It returns the part that the credit does not cover.
func (f *frames) pay(cost int) (excess int) {
	f.credit = min(f.credit-cost, creditMax)
	if f.credit < 0 {
		excess, f.credit = -f.credit, 0
	}
	return excess
}
