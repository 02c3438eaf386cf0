package liveness

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// These settings detect that a machine has failed and no longer sends anything. The kernel sends a keepalive probe
// every second. It breaks a connection if the peer has acknowledged nothing, not even a probe, for silenceMax. A
// server process that hangs does not break its connections, because its kernel still acknowledges data.
const (
	askEvery   = time.Second
	silenceMax = 2 * time.Second
)

// dialer makes connections that detect a failed machine.
var dialer = net.Dialer{
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: askEvery, Interval: askEvery, Count: 2},
	Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silenceMax.Milliseconds()))
		})
		return errors.Join(err, set)
	},
}
