// Package replay determines which frames of a segment count: which entries a later leader made void, where the log
// ends, and which of these facts bad bytes may hide. The package is pure: it takes frames, and returns rows, terms,
// damage and the end of the log.
package replay
