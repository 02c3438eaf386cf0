// Package pieces converts between a group's entries and the segments in an archive's objects, which are the pieces of
// log objects and the segment objects (docs/archive.md). The package does not access a bucket.
package pieces
