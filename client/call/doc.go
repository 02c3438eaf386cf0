// Package call is the parent folder of the packages that the client shares with gateways and shards. These packages
// are public only because the servers are in another module. They are not meant for other programs, and they change
// without notice.
package call
