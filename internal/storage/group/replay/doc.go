// Package replay determines which frames of a segment count. It finds the entries that a later leader made void, the
// end of the log, and the bad bytes that may hide such facts. The package is pure. From frames it computes rows, terms,
// damage and the end of the log.
package replay
