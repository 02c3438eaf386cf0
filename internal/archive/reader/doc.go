// Package reader reads an archive as described in docs/archive.md. It provides the groups of a store, the state of a
// group or record as of an index or a time, and all versions of a record. It verifies all data before it returns it.
// It returns an error if the archive has no exact answer. Verify checks a whole archive.
package reader
