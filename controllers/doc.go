// Package controllers holds the controllers of the operator, and the tests that run all of them against a real API
// server.
//
// Each kind has one folder: recordstore, shardpool, diskset, recordarchive (which also reconciles RecordBackups) and
// recordgrant (which also reconciles RecordTenants). No controller imports another. A reconcile gathers the current
// state, decides without I/O, acts, and finally writes the status once.
//
// The controllers share three packages: step (how a reconcile runs, applies objects, reports its actions and chooses
// its next run), fleet (the shards of a store as described by the shards, by etcd and by Kubernetes objects) and trust
// (the certificates and authorities of a store).
package controllers
