//go:build !linux

package liveness

import "net"

// dialer is for systems without the kernel settings in dialer_linux.go. On such systems, only a Pulse detects failed
// machines.
var dialer net.Dialer
