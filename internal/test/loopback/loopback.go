// Package loopback finds addresses of the loopback device for servers that must know their address before they listen.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
)

// The ports that FreeAddress gives are below those that Linux gives to connections and to listeners on port 0 (from
// 32768 on) and below Kubernetes' NodePorts (from 30000 on): nobody gets one by chance between the look and the use.
const (
	firstPort = 12000
	ports     = 18000
)

// next starts at another place in each process, so that two processes seldom meet.
var next atomic.Uint32

func init() { next.Store(rand.Uint32N(ports)) }

// FreeAddress gives an address of 127.0.0.1 that nobody listens on now and that it has given to nobody else in this
// process. It may be called by several goroutines at once.
func FreeAddress() (string, error) {
	var config net.ListenConfig
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+next.Add(1)%ports)
		if l, err := config.Listen(context.Background(), "tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", errors.New("1000 ports of 127.0.0.1 are taken: is the network of this machine set up?")
}
