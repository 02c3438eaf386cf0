// Package segio reads segment files: in order and ahead, frame by frame, in parallel into memory, and past the page
// cache. It also writes whole new segment files. It does not know what a frame means for a log.
package segio
