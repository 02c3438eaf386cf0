// Package transfer installs the files of a group's log, which another shard has sent, in the folder of a replica. A log
// may be open on that folder while the files arrive. The package defines which files are sent.
package transfer
