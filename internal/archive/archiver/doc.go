// Package archiver keeps the archive of one store up to date, as docs/archive.md describes it. It asks a Source for the
// new entries of all groups, and creates objects in a bucket. It has no state of its own: a new process finds in the
// bucket how far each group is archived.
package archiver
