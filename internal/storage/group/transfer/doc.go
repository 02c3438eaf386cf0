// Package transfer installs the files of a group's log, received from another shard, in a replica's folder. A log may
// be open on that folder while the files arrive. The package defines which files are sent.
package transfer
