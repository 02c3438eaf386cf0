// Package object converts between the objects of an archive and their bytes, as docs/archive.md describes them: the
// envelope, the checks of each chunk, the encryption, the headers and the names. It neither reads nor writes a bucket.
package object
