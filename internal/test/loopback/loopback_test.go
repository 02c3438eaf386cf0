package loopback_test

import (
	"net"
	"strconv"
	"testing"

	"sheaf.dev/sheaf/internal/test/loopback"
)

func TestFreeAddressIsFreeAndNobodyGetsItByChance(t *testing.T) {
	address, err := loopback.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.Atoi(port); err != nil || n >= 30000 {
		t.Errorf("port %s is one that the kernel or Kubernetes may give to somebody else", port)
	}
}
