// Package call is the parent of the packages that the client shares with gateways and shards. They are public only
// because the servers are in another module. They are not for other programs, and change without notice.
package call
