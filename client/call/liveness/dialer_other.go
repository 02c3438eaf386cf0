//go:build !linux

package liveness

import "net"

// dialer is used on systems that do not have the kernel settings of dialer_linux.go. On these systems, only a Pulse
// detects that a machine has failed.
var dialer net.Dialer
