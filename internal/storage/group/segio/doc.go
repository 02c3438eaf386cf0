// Package segio reads segment files. It can read them sequentially with read-ahead, frame by frame, in parallel into
// memory, and bypassing the page cache. It also writes whole new segment files. It does not depend on what a frame
// means.
package segio
