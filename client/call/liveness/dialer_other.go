//go:build !linux

package liveness

import "net"

// dialer is for systems whose kernel gets no such settings: a Pulse detects failed machines by itself.
var dialer net.Dialer
