// Package restore makes the files of groups for a new store from the archive of another store. Image is one group as of
// a point in time, in the form in which a member of the group would export it, so that a shard can install it. See
// docs/archive.md, "Restore".
package restore
