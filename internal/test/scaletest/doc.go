// Package scaletest measures the operator with a thousand shards: its tests run the real operator against a real API
// server, with nodes and pods that kwok plays and shards that the test plays. README.md says what is real, what is
// played, and what is asserted.
package scaletest
