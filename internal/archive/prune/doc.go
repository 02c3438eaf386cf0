// Package prune makes an archive smaller: it keeps points in time and a window, writes bases that replace what nothing
// needs any more, lists objects in drops, and deletes them a day later (docs/archive.md, Drops).
package prune
