package ratelimit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// dropTime is how long new connections from an address are dropped after one of them was refused. The kernel of an
	// honest client repeats its packet after a second, and then succeeds.
	dropTime = time.Second
	// droppedMax limits the number of addresses whose new connections are dropped at the same time, because the kernel
	// compares the source address of every new connection with all of them. Connections from other addresses are refused
	// one by one.
	droppedMax = 64
)

// dropping manages a filter in the kernel that drops new connections from certain addresses before they reach the
// server. Without it, the server would spend about 40 µs on accepting and closing each of them. The filter is attached
// to the listener's socket. It needs no privileges, and disappears together with the socket. dropping is safe for
// concurrent use.
type dropping struct {
	lasts  time.Duration // how long an address is dropped; longer in tests
	attach func(fd int, program []unix.SockFilter) error
	logger *slog.Logger

	mu      sync.Mutex
	sockets []syscall.RawConn // sockets of the listeners
	now     map[netip.Prefix]struct{}
	stuck   bool // whether the last attempt to stop dropping an address has failed and was logged
}

func newDropping(logger *slog.Logger) dropping {
	return dropping{lasts: dropTime, attach: attach, logger: logger, now: map[netip.Prefix]struct{}{}}
}

// listens changes config so that the sockets of all listeners created with it are registered with d.
func (d *dropping) listens(config *net.ListenConfig) {
	config.SetMultipathTCP(false) // MPTCP sockets do not accept a filter
	config.Control = func(_, _ string, socket syscall.RawConn) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.sockets = append(d.sockets, socket)
		return nil
	}
}

// begin starts to drop new connections from an address, for the duration d.lasts. It returns false if the kernel
// drops them already, if droppedMax addresses are being dropped, if there is no listener, or if the address is
// invalid.
func (d *dropping) begin(who netip.Prefix) (begun bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.now[who]; known || len(d.sockets) == 0 || !who.IsValid() || len(d.now) >= droppedMax {
		return false, nil
	}
	d.now[who] = struct{}{}
	if err := d.apply(); err != nil {
		delete(d.now, who)
		return false, err
	}
	time.AfterFunc(d.lasts, func() { d.end(who) })
	return true, nil
}

// end stops dropping new connections from an address. If the kernel does not accept the new filter, end tries again
// later, because otherwise the address would be dropped forever.
func (d *dropping) end(who netip.Prefix) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.now, who)
	err := d.apply()
	if err != nil {
		d.now[who] = struct{}{}
		time.AfterFunc(d.lasts, func() { d.end(who) })
		if !d.stuck {
			d.logger.Error(
				"the kernel goes on dropping the connections of an address: taking that back is tried again, start this process "+
					"anew where it stays so",
				"address", who, "again_after", d.lasts, "error", err)
		}
	}
	d.stuck = err != nil
}

// apply replaces the filter of each listener with one for the addresses that are to be dropped now. The caller holds
// the mutex.
func (d *dropping) apply() error {
	program, err := filter(d.now)
	if err != nil {
		return err
	}
	var failed error
	open := d.sockets[:0]
	for _, socket := range d.sockets {
		var set error
		if socket.Control(func(fd uintptr) { set = d.attach(int(fd), program) }) != nil {
			continue // the socket is closed
		}
		open, failed = append(open, socket), errors.Join(failed, set)
	}
	d.sockets = open
	return failed
}

// attach replaces the filter of a socket with a program. If the program is empty, the socket then has no filter.
func attach(fd int, program []unix.SockFilter) error {
	if len(program) > 0 {
		err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
		if err != nil {
			return fmt.Errorf("flood: setting a filter of a listener: %w", err)
		}
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil &&
		!errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("flood: taking back the filter of a listener: %w", err)
	}
	return nil
}

// These are the offsets of the fields in the IP header that a filter looks at. In the filter of a TCP socket, small
// offsets count from the TCP header, and offsets from networkHeader upwards count from the IP header (linux/filter.h,
// SKF_NET_OFF).
const (
	networkHeader = 0xfff00000
	source4       = networkHeader + 12
	source6       = networkHeader + 8 // offset of the upper 64 bits of the source address, which form the prefix
)

// filter returns a program that drops packets from the given addresses. If there are none, the program is empty. The
// filter of a listener sees only packets that open a connection, because all other packets go to the socket of their
// connection.
func filter(dropped map[netip.Prefix]struct{}) ([]unix.SockFilter, error) {
	if len(dropped) == 0 {
		return nil, nil
	}
	const whole = 1 << 18 // number of bytes that the filter lets through, which is larger than any packet
	pass, drop := bpf.RetConstant{Val: whole}, bpf.RetConstant{Val: 0}
	v4 := []bpf.Instruction{bpf.LoadAbsolute{Off: source4, Size: 4}}
	v6 := []bpf.Instruction{}
	for who := range dropped {
		bytes := who.Addr().AsSlice()
		high := binary.BigEndian.Uint32(bytes)
		if who.Addr().Is4() {
			v4 = append(v4, bpf.JumpIf{Cond: bpf.JumpEqual, Val: high, SkipFalse: 1}, drop)
			continue
		}
		v6 = append(v6,
			bpf.LoadAbsolute{Off: source6, Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: high, SkipFalse: 3},
			bpf.LoadAbsolute{Off: source6 + 4, Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(bytes[4:]),
				SkipFalse: 1}, drop)
	}
	v4, v6 = append(v4, pass), append(v6, pass)
	program := append([]bpf.Instruction{
		// The first byte contains the IP version and the length of the IP header.
		bpf.LoadAbsolute{Off: networkHeader, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 4, SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(v4))},
	}, append(v4, v6...)...)
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("flood: a filter of %d addresses: %w", len(dropped), err)
	}
	out := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		out[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return out, nil
}
