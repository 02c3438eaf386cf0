// Package reader reads an archive as described in docs/archive.md. It provides the groups of a store, the state of a
// group or of a record as of an index or a time, and all versions of a record. It checks every byte before it returns
// the byte. It refuses a question to which the archive has no exact answer. Verify checks a whole archive.
package reader
