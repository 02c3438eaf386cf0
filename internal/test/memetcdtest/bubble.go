package memetcdtest

import _ "unsafe" // required by go:linkname

// neverDone is the channel that the client library uses as the Done channel of contexts for watches, which never end.
// The channel is created when the program starts, outside of any bubble of testing/synctest. Each watch has a goroutine
// that waits for this channel, which would keep virtual time from passing. Therefore init() sets the channel to nil.
// The contexts for watches then have no Done channel, so no goroutine waits for one.
//
//go:linkname neverDone go.etcd.io/etcd/client/v3.valCtxCh
var neverDone chan struct{}

func init() { neverDone = nil }
