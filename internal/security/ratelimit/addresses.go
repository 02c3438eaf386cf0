package ratelimit

import (
	"container/list"
	"net"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
)

// These are the limits for one address, and for all addresses together. Each server counts only the connections that
// it has accepted itself.
const (
	// handshakesPerSecond is the rate at which the connections from one address may start handshakes, and
	// handshakesAtOnce is the burst. The rate is limited because a handshake costs the server more than a millisecond.
	handshakesPerSecond = 50
	handshakesAtOnce    = 100
	// waitingMax limits how many connections from one address may wait to start their handshake. Because of the rate,
	// the last of 250 connections waits five seconds. Clients give up only after 20 s.
	waitingMax = 250
	// shakingMax limits the number of handshakes from one address that may be in progress, and shakingInAll limits the
	// number from all addresses together.
	shakingMax   = 128
	shakingInAll = 4096
	// excessPerSecond limits by how many points per second (see frames.go) all connections from one address together may
	// exceed their own allowances. excessAtOnce is the burst.
	excessPerSecond = 500
	excessAtOnce    = 500
	// addressesMax limits the number of addresses that are tracked separately. All other addresses share one budget.
	addressesMax = 65536
	sweepFirst   = 1024
)

// address tracks the connections from one IP address, or from one /64 of IPv6. Its limiters are safe for concurrent
// use. All other fields are guarded by the Guard's mutex.
type address struct {
	handshakes *rate.Limiter
	excess     *rate.Limiter
	users      int       // number of open and waiting connections
	waiting    int       // number of connections that wait to start their handshake
	shaking    list.List // handshakes in progress (*handshake), oldest first
}

func newAddress() *address {
	return &address{
		handshakes: rate.NewLimiter(handshakesPerSecond, handshakesAtOnce),
		excess:     rate.NewLimiter(excessPerSecond, excessAtOnce),
	}
}

// forgettable reports whether the record of the address can be dropped without any effect on how the address is
// limited.
func (a *address) forgettable(now time.Time) bool {
	return a.users == 0 && a.handshakes.TokensAt(now) >= handshakesAtOnce && a.excess.TokensAt(now) >= excessAtOnce
}

// addresses maps prefixes to the addresses that are tracked. It is not safe for concurrent use.
type addresses struct {
	known   map[netip.Prefix]*address
	others  *address // shared budget of the addresses that are not tracked separately
	sweepAt int      // number of tracked addresses at which forgettable ones are removed
}

func newAddresses() addresses {
	return addresses{known: map[netip.Prefix]*address{}, others: newAddress(), sweepAt: sweepFirst}
}

// of returns the record of the address from which a connection was made.
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

// prefix returns the key under which an address is tracked. Addresses that are not IP addresses, such as those of
// pipes in tests, all share one key.
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
