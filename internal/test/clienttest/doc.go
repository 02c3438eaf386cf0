// Package clienttest tests the Go client, and the rules that it shares with gateways, against whole stores. The tests
// are not next to the client, because the client's module would then need all modules of the servers.
package clienttest
