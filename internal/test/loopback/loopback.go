// Package loopback finds addresses of the loopback device for servers that must know their address before they listen,
// and lists the sockets on which a process listens.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"

	"sheaf.dev/sheaf/internal/test/must"
)

// Linux assigns ports from 32768 on to connections and to listeners on port 0, and Kubernetes assigns NodePorts from
// 30000 on. The ports in this package are lower, so that no other program is given one of them by chance between the
// check and the use.
const (
	firstPort = 12000
	ports     = 18000
)

// next begins at a different value in each process, so that two processes seldom choose the same port.
var next atomic.Uint32

func init() { next.Store(rand.Uint32N(ports)) }

// Free is like FreeAddress, for a test. It fails the test if there is no free address.
func Free(t must.T) string {
	t.Helper()
	address, err := FreeAddress()
	must.OK(t, err)
	return address
}

// FreeAddress returns an address on 127.0.0.1 at which nothing listens at the moment, and which FreeAddress has not
// returned before in this process. FreeAddress is safe for concurrent use.
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
