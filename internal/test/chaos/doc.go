// Package chaos runs real processes (etcd, gateways, shards), each in a network namespace of its own, breaks them while
// clients write and read, and judges by what the clients saw. It holds tests only; README.md says how to run and read
// them.
package chaos
