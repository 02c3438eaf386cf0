// Package replay determines which frames of a segment count: which entries a later leader made void, where the log
// ends, and what bad bytes may hide of that. It is pure: its input is frames, its output rows, terms, damage and the
// end.
package replay
