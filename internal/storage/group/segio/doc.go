// Package segio reads segment files: in order and ahead, frame by frame, in parallel into memory, and past the page
// cache. It writes whole new ones. What a frame means for a log, it does not know.
package segio
