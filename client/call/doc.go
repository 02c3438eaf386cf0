// Package call is the parent of the packages that the client shares with gateways and shards. These packages are public
// only because the servers are in another module. They are not for other programs, and they change without notice.
package call
