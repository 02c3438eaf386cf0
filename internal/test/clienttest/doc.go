// Package clienttest tests the Go client, and the rules that it shares with gateways, against whole stores. These tests
// are not beside the client, because its module would then need all modules of the servers.
package clienttest
