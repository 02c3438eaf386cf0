// Command coredns is CoreDNS with only the plugins that a test cluster needs. The standard build links the SDKs of all
// clouds, which would more than double its build time in CI.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
)

// order is the order in which plugins handle a query. CoreDNS takes the order from this list, not from the Corefile.
var order = []string{"ready", "errors", "loadbalance", "kubernetes"}

func main() {
	dnsserver.Directives = order
	coremain.Run()
}
