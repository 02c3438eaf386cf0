// Package scaletest measures the operator with a thousand shards: its tests run the real operator against a real API
// server. kwok simulates the nodes and pods, and the test simulates the shards. README.md says what is real, what is
// simulated, and what is asserted.
package scaletest
