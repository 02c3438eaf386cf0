// Package replay says what counts of the frames of a segment: which entries a later leader made void, where the log
// ends, and what bad bytes may hide of that. It is pure: frames in, and rows, terms, damage and the end out.
package replay
