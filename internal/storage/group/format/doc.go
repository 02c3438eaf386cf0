// Package format makes bytes of structs and structs of bytes: segment headers, frames, manifest, mark, hints, blobs and
// the replica file, and the damage that is found in them. It knows one file at a time, and not what a log does with it.
// docs/format.md says the same in words and pictures.
package format
