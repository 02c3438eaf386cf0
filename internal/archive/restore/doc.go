// Package restore converts groups in the archive of one store to files for a new store. An Image is one group as of a
// point in time. It has the form of an export by a member of the group, so a shard can install it. See
// docs/archive.md, "Restore".
package restore
