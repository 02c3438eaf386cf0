// Package object encodes and decodes the objects of an archive, as described in docs/archive.md. This covers the
// envelope, the checks of the chunks, the encryption, the headers and the names. The package does not access a bucket.
package object
