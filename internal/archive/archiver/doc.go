// Package archiver keeps the archive of one store up to date, as described in docs/archive.md. It requests the new
// entries of all groups from a Source, and creates objects in a bucket. It has no local state, because a new process
// finds out from the bucket how far each group is archived.
package archiver
