// Package replay determines which frames of a segment are valid. It recognizes entries that a later leader has made
// void, finds the end of the log, and finds bad bytes that may hide a truncation. From the frames it computes rows,
// terms and damage. The package does no I/O.
package replay
