// Package replay determines which frames of a segment are valid. It finds the entries that a later leader made void,
// the end of the log, and the bad bytes that may hide such facts. The package does no I/O. From frames it computes
// rows, terms, damage and the end of the log.
package replay
