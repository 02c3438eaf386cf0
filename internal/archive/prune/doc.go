// Package prune makes an archive smaller. It keeps points in time and a window of recent history. Everything that
// these no longer need is replaced by bases, listed in drops, and deleted a day later (docs/archive.md, "Drops").
package prune
