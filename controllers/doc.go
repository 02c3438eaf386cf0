// Package controllers holds the rooms of the operator, and the tests that play with all of them against a real API
// server.
//
// One folder for each kind: recordstore, shardpool, diskset, recordgrant (with RecordTenants). None imports another; a
// reconcile there gathers what is, decides without I/O, acts, and writes the status once, at its end. What they share
// lies below them: step (how a reconcile runs, applies objects, tells what it did and when it looks again), fleet (the
// shards of a store: what they, etcd and their objects say) and trust (a store's certificates and authorities).
package controllers
