// Package reader reads an archive as docs/archive.md describes it: the groups of a store, the state of a group or of a
// record as of an index or a time, and all versions of a record. It checks every byte before it hands it out, and it
// refuses a question that the archive cannot answer exactly. Verify checks a whole archive.
package reader
