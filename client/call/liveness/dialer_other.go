//go:build !linux

package liveness

import "net"

// dialer is for systems without the kernel settings of dialer_linux.go. There, only a Pulse detects failed machines.
var dialer net.Dialer
