// Package scaletest measures the operator with a thousand shards. Its tests run the real operator against a real API
// server. kwok simulates the nodes and pods, and the test simulates the shards. README.md explains what is real, what
// is simulated, and what the tests check.
package scaletest
