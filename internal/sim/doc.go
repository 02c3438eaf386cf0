// Package sim holds the simulation of a group with several copies, as tests: the real log and the real replicas on machines
// with disks that lose power, in a network that loses, delays and repeats messages, in a time of its own. Seeded faults come
// while clients read and write; what they saw and what is on the disks is judged at the end.
package sim
