// Command coredns is CoreDNS with the plugins a test cluster needs and no other: the stock build links the
// software kits of every cloud, which would more than double the time CI spends on it.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
)

// The order in which a query meets the plugins; CoreDNS takes it from here, not from the Corefile.
var order = []string{"ready", "errors", "loadbalance", "kubernetes"}

func main() {
	dnsserver.Directives = order
	coremain.Run()
}
