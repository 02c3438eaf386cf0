package liveness

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// The e2e suite shows how connections behave on a partitioned network. This test checks that each connection has the
// required settings.
func TestConnectionsDetectLostMachine(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	l := lines{connect: Dial}
	conn, err := l.dial(t.Context(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*line).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]int{unix.TCP_USER_TIMEOUT: int(silenceMax.Milliseconds()), unix.TCP_KEEPIDLE: 1, unix.TCP_KEEPINTVL: 1}
	if err := raw.Control(func(fd uintptr) {
		for option, value := range want {
			if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != value {
				t.Errorf("TCP option %d is %d, not %d: %v", option, got, value, err)
			}
		}
		if on, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); err != nil || on == 0 {
			t.Errorf("the kernel does not ask for a sign of life: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
