// Package call is the folder of what the client shares with gateways and shards. Its packages are public because the
// servers are in another module, and not for other programs: they change without notice.
package call
