// Package pieces converts between entries of a group and the segments that stand in objects of an archive: the pieces
// of log objects, and segment objects (docs/archive.md). It neither reads nor writes a bucket.
package pieces
