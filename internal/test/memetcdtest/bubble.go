package memetcdtest

import _ "unsafe" // for go:linkname

// neverDone is the channel by which the client library's contexts of watches say that they never end. It is made when
// the program starts, outside of any bubble of testing/synctest: a goroutine that waits for it keeps virtual time from
// passing, and each watch has one. Without a channel, these contexts never end either, and nothing waits.
//
//go:linkname neverDone go.etcd.io/etcd/client/v3.valCtxCh
var neverDone chan struct{}

func init() { neverDone = nil }
