package ratelimit

import "encoding/binary"

// The frames of HTTP/2 by their types (RFC 9113, 6).
const (
	frameData          = 0
	frameHeaders       = 1
	frameReset         = 3
	framePing          = 6
	frameWindowUpdate  = 8
	frameContinuation  = 9
	flagEndStream      = 1
	frameHeaderBytes   = 9
	clientPrefaceBytes = 24 // "PRI * HTTP/2.0 ...", which begins a connection
)

// What an honest client is not asked about.
const (
	// continuationBytes of a CONTINUATION frame cost a point beside that of the frame: they are decrypted and thrown away.
	continuationBytes = 1 << 10
	// creditFirst is how many points a connection begins with: for its first SETTINGS. More would be had again by
	// connecting anew.
	creditFirst = 8
	// creditMax is how many points a connection may save: a client cancels some calls at once (hedging, a page that is
	// left).
	creditMax = 256
	// resetCost in points. A call brings one: up to half of a client's calls may be reset, at any rate.
	resetCost = 2
	// updatesFree of a connection, beside one for each updateBytes that the server has written. A client opens its
	// windows for what it has received, and the shortest answer has more bytes than that.
	updatesFree = 64
	updateBytes = 8
)

// frames follows what a client sends on one connection, from its first byte on, and counts what honest clients do not
// send. Not safe for concurrent use.
//
//	+---------------+------+-------+-------------+---------+
//	| length (24)   | type | flags | stream (32) | payload |
//	+---------------+------+-------+-------------+---------+
type frames struct {
	skip    uint32                 // bytes that come before the next frame's header
	header  [frameHeaderBytes]byte // of the next frame
	have    int                    // bytes of it that have come
	credit  int                    // points, at most creditMax
	updates int64                  // WINDOW_UPDATE frames that have come
}

func newFrames() frames { return frames{skip: clientPrefaceBytes, credit: creditFirst} }

// take follows the next bytes. It gives by how many points they go beyond what the connection may do; written is how
// many bytes the server has written on the connection until now.
func (f *frames) take(b []byte, written int64) (excess int) {
	for len(b) > 0 {
		if f.skip > 0 {
			n := min(int(f.skip), len(b))
			f.skip -= uint32(n)
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
		excess += f.pay(f.cost(written))
	}
	return excess
}

// cost of the frame whose header has come, in points; negative: it brings some.
func (f *frames) cost(written int64) int {
	switch f.header[3] {
	case frameHeaders:
		return -1
	case frameReset:
		return resetCost
	case frameData: // data is bounded by the windows that the server gives; a frame without any is not
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
	case framePing: // gRPC ends connections with too many of them
		return 0
	}
	return 1 // SETTINGS, PRIORITY, GOAWAY, and what is not known
}

// pay takes a cost from the credit, and gives what is not covered.
func (f *frames) pay(cost int) (excess int) {
	f.credit = min(f.credit-cost, creditMax)
	if f.credit < 0 {
		excess, f.credit = -f.credit, 0
	}
	return excess
}
