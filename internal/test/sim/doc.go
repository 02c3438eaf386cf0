// Package sim holds the simulation of a group with one, three or five copies, as tests: the real log and the real
// replicas on machines with disks that lose power and whose bytes rot, in a network that loses, delays and repeats
// messages, in a time of its own. Seeded faults come while clients read and write; what they saw and what is on the
// disks is judged at the end. How to run a seed again is in CONTRIBUTING.md.
//
// What must hold (the oracles): no acknowledged write is lost and none is invented; the replicas agree on every entry
// that becomes visible; in each term one leads; each request is applied once; for each record there is one order of all
// calls that fits what every client saw; every byte on the disks, and every used flag, is as the log says; and a healed
// group comes to an end. That the simulation would notice a fault is proven by switching the rules off, one after
// another: each has to be found by the oracle that it is for.
//
// Clocks of machines are set ahead and back by minutes. Machines are cut off for moments about as long as a lease or an
// election timeout, and members hear late that another one is silent. Writes that were answered come again seconds
// later, and request ids come with other writes than their own. A write that made no entry is remembered by the process
// that answered it alone: only to that one its late duplicate is sent.
//
// Bytes of segments and blobs rot below the synced mark alone, and on one voter at a time: of the others a majority
// holds everything. What was not marked as synced cannot be told from a torn write. Damage may be told to clients,
// wrong bytes may not; it is repaired from the leader by the code that shards use, and in the end every entry of every
// log is the one that was applied first. Bytes of manifest, mark, replica file and hint rot anywhere, in one place of a
// file at a time: that is no damage to anybody, and the file is whole in the end. Where both copies of the manifest are
// bad, the replica is lost like its volume; without a mark nothing is.
//
// Each volume with a journal holds further groups, of one copy, which share the journal and the committer: what they
// were promised is there after each start.
//
// Disks are full for a while, and single writes and syncs fail, of which some lose what they were to write as Linux
// does: it reads back, and is not on the disk. A replica goes on in a new segment, or it has failed: then its process
// begins anew, with its page cache or behind a power cut.
//
// The dice of faults and calls are those of the seed; the turns of the goroutines, and Raft's own dice, are not. A
// goroutine must never sleep with a lock held: the time of the bubble would stand still.
package sim
