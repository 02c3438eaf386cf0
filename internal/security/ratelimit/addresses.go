package ratelimit

import (
	"container/list"
	"net"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
)

// These are the limits of one address, and of all addresses together. Each server counts only its own connections.
const (
	// handshakesPerSecond is the handshake rate of an address, and handshakesAtOnce its burst. A handshake costs a
	// server more than a millisecond.
	handshakesPerSecond = 50
	handshakesAtOnce    = 100
	// waitingMax limits how many connections from one address may wait to start a handshake. The last of 250
	// connections waits five seconds, which is less than the 20 s after which clients give up.
	waitingMax = 250
	// shakingMax limits how many handshakes from one address may be in progress, and shakingInAll limits how many from
	// all addresses together.
	shakingMax   = 128
	shakingInAll = 4096
	// excessPerSecond is how many points per second all connections from one address together may spend beyond the
	// allowance of each connection, and excessAtOnce is the burst.
	excessPerSecond = 500
	excessAtOnce    = 500
	// addressesMax bounds the number of addresses that are tracked separately. All other addresses share one budget.
	addressesMax = 65536
	sweepFirst   = 1024
)

// address tracks the connections from one address. All IPv6 addresses of one /64 count as one address. The limiters are
// safe for concurrent use. The Guard's mutex guards the other fields.
type address struct {
	handshakes *rate.Limiter
	excess     *rate.Limiter
	users      int       // number of connections that are open or waiting
	waiting    int       // number of connections that wait for their turn to start a handshake
	shaking    list.List // handshakes in progress (*handshake), the oldest first
}

func newAddress() *address {
	return &address{
		handshakes: rate.NewLimiter(handshakesPerSecond, handshakesAtOnce),
		excess:     rate.NewLimiter(excessPerSecond, excessAtOnce),
	}
}

// forgettable reports whether the address's record can be dropped without changing how the address is limited.
func (a *address) forgettable(now time.Time) bool {
	return a.users == 0 && a.handshakes.TokensAt(now) >= handshakesAtOnce && a.excess.TokensAt(now) >= excessAtOnce
}

// addresses maps prefixes to the tracked addresses. Not safe for concurrent use.
type addresses struct {
	known   map[netip.Prefix]*address
	others  *address // the shared budget of the addresses that are not tracked separately
	sweepAt int      // number of addresses at which forgettable ones are removed
}

func newAddresses() addresses {
	return addresses{known: map[netip.Prefix]*address{}, others: newAddress(), sweepAt: sweepFirst}
}

// of returns the record of the address from which a connection comes.
func (s *addresses) of(remote net.Addr, now time.Time) *address {
	key := prefix(remote)
	if a := s.known[key]; a != nil {
		return a
	}
	if len(s.known) >= s.sweepAt {
		for k, a := range s.known {
			if a.forgettable(now) {
				delete(s.known, k)
			}
		}
		s.sweepAt = min(max(sweepFirst, 2*len(s.known)), addressesMax)
	}
	if len(s.known) >= addressesMax {
		return s.others
	}
	a := newAddress()
	s.known[key] = a
	return a
}

// prefix returns the key of an address. All addresses other than IP addresses, such as those of pipes in tests, share
// one key.
func prefix(remote net.Addr) netip.Prefix {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	out, err := ip.WithZone("").Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return out
}
