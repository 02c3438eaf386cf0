package loopback_test

import (
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/must"
)

func TestFreeAddressIsReserved(t *testing.T) {
	address, err := loopback.FreeAddress()
	must.OK(t, err)
	l, err := net.Listen("tcp", address)
	must.OK(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(address)
	must.OK(t, err)
	if n, err := strconv.Atoi(port); err != nil || n >= 30000 {
		t.Errorf("port %s is one that the kernel or Kubernetes may give to somebody else", port)
	}
}

func TestListenersAreThoseOfTheProcess(t *testing.T) {
	t.Chdir(t.TempDir())
	var want []loopback.Listener
	var config net.ListenConfig
	for network, address := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0", "unix": "s"} {
		l, err := config.Listen(t.Context(), network, address)
		if err != nil && network == "tcp6" {
			t.Log(err) // a machine without IPv6
			continue
		}
		must.OK(t, err)
		defer l.Close()
		want = append(want, loopback.Listener{Network: l.Addr().Network(), Address: l.Addr().String()})
	}
	datagrams, err := config.ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	must.OK(t, err)
	defer datagrams.Close()
	want = append(want, loopback.Listener{Network: "udp", Address: datagrams.LocalAddr().String()})
	got, err := loopback.Listeners(os.Getpid())
	if err != nil || !slices.Equal(got, slices.SortedFunc(slices.Values(want), func(a, b loopback.Listener) int {
		return strings.Compare(a.Network+a.Address, b.Network+b.Address)
	})) {
		t.Errorf("%v (%v), and want %v", got, err, want)
	}
	if _, err := loopback.Listeners(-1); err == nil {
		t.Error("a process that is not there listens")
	}
}
