package liveness

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A machine that is gone says nothing: the kernel asks for a sign of life each second, and takes a connection for
// broken when nothing of what was sent, be it such a question, is acknowledged for so long. A server's own silence does
// not count: its kernel answers.
const (
	askEvery   = time.Second
	silenceMax = 2 * time.Second
)

// dialer makes connections that notice it.
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
