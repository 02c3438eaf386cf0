// Package format converts between structs and bytes. It covers segment headers, frames, manifest, mark, hints, blobs
// and the replica file, and describes damage found in them. It handles one file at a time, and does not depend on how a
// log uses the file. docs/format.md describes the formats with diagrams.
package format
