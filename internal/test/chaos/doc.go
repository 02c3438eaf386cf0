// Package chaos runs real processes (etcd, gateways, shards), each in a network namespace of its own. It breaks the
// processes and their networks while clients write and read, and judges the run by what the clients saw. The package
// holds only tests. README.md explains how to run them and how to read their output.
package chaos
