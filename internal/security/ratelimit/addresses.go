package ratelimit

import (
	"container/list"
	"net"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
)

// Limits of an address, and of all. All are of one server.
const (
	// handshakesPerSecond of an address, and those at once. A handshake takes a server more than a millisecond.
	handshakesPerSecond = 50
	handshakesAtOnce    = 100
	// waitingMax are the connections of an address that wait for their turn to begin a handshake: the last of them for
	// five seconds, while clients wait for 20 s.
	waitingMax = 250
	// shakingMax are the handshakes under way of an address, and shakingInAll those of all.
	shakingMax   = 128
	shakingInAll = 4096
	// excessPerSecond are the points of an address, for all of its connections together, beyond what each of them may
	// do, and those at once.
	excessPerSecond = 500
	excessAtOnce    = 500
	// addressesMax that are told apart. Those beyond share one budget.
	addressesMax = 65536
	sweepFirst   = 1024
)

// address is whoever connects from one address (IPv6: from one /64). The limiters are safe for concurrent use; all
// else is guarded by the Guard's mutex.
type address struct {
	handshakes *rate.Limiter
	excess     *rate.Limiter
	users      int       // connections that are open or wait
	waiting    int       // connections that wait for their turn
	shaking    list.List // of *handshake, the oldest first
}

func newAddress() *address {
	return &address{
		handshakes: rate.NewLimiter(handshakesPerSecond, handshakesAtOnce),
		excess:     rate.NewLimiter(excessPerSecond, excessAtOnce),
	}
}

// forgettable tells whether nothing would change if the address came anew.
func (a *address) forgettable(now time.Time) bool {
	return a.users == 0 && a.handshakes.TokensAt(now) >= handshakesAtOnce && a.excess.TokensAt(now) >= excessAtOnce
}

// addresses by their prefixes. Not safe for concurrent use.
type addresses struct {
	known   map[netip.Prefix]*address
	others  *address // of those that found no room
	sweepAt int      // addresses that are known when those to be forgotten are looked for
}

func newAddresses() addresses {
	return addresses{known: map[netip.Prefix]*address{}, others: newAddress(), sweepAt: sweepFirst}
}

// of gives the address of a connection.
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

// prefix is who is meant by an address. What is no IP address (a pipe of a test) is one address.
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
