// Package chaos runs real processes (etcd, gateways, shards), each in its own network namespace. It injects faults into
// the processes and their networks while clients write and read, and judges the run by the responses that the clients
// received. The package contains only tests. README.md explains how to run them and how to read their output.
package chaos
