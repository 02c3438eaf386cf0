// Package sim is a simulation, in the form of tests, of a group with one, three or five copies. It runs the real log
// and the real replicas on simulated machines. Their disks lose power and rot, their network loses, delays and
// duplicates messages, and their time is virtual. While clients read and write, faults occur that are derived from a
// seed. At the end, the simulation judges what the clients saw and what is on the disks. CONTRIBUTING.md explains how
// to run a seed again.
//
// The oracles check these conditions. No acknowledged write is lost, and no write appears that was not requested. The
// replicas agree on every entry that becomes visible. Each term has at most one leader. Each request is applied once.
// For each record there is one order of all calls that fits what every client saw. Every byte on the disks, and every
// used flag, agrees with the log. After all faults are healed, the group finishes its work. To prove that the
// simulation would notice a violation, tests switch off the safety rules one by one. The oracle that checks a rule must
// then find that the rule is violated.
//
// Clocks of machines are set forward and back by minutes. Machines are disconnected for about as long as a lease or an
// election timeout, and members notice late that another member is silent. Answered writes arrive again seconds later,
// and request ids are reused for other writes. A write that made no entry is remembered only by the process that
// answered it, so the late duplicate of such a write is sent only to that process.
//
// Bytes of segments and blobs rot only below the synced mark, and only on one voter at a time, so that a majority of
// the voters holds everything. Above the mark, rot could not be distinguished from a torn write. Clients may receive
// errors about damage, but never wrong bytes. The code that shards use repairs damage from the leader, and at the end
// every entry of every log must be the one that was applied first. Bytes of the manifest, the mark, the replica file
// and the hints rot anywhere, but in one place of a file at a time. Such rot damages nothing, and the file must be
// repaired at the end. If both copies of the manifest are bad, the replica is lost as if its volume were lost. If the
// mark is bad, nothing is lost.
//
// Each volume with a journal also holds further groups with one copy, which share the journal and the committer. After
// each start, every write that these groups acknowledged must still exist.
//
// Disks are full for a while, and single writes and syncs fail. Some failed syncs lose data as on Linux: the data can
// still be read, but it is not on the disk. A replica then either continues in a new segment or fails. After a failure
// its process starts again, either with the page cache of the machine or after a power cut.
//
// In every second run, copies keep history, as ADR 59 and ADR 66 describe. An archiver follows the group, lags, ends
// and begins again. Views are opened, stay open over the faults, and are closed or given up. What a copy holds is
// decided by the code of shards. At random times, any copy is read as of an index that it has applied, in a scan and in
// gets. The result must equal what was there at that index. A copy may refuse because its history floor is above the
// index, but not if it has promised to keep the history. The copies that held a view before its index was chosen have
// promised that, as have those that know the archiver's position, and every copy that was installed from one of them.
// A promise ends when the copy gives up history for want of space, or is repaired. What the archiver has read must
// equal what was there at each index from its last hole on.
//
// The seed determines the faults and the calls. It does not determine the order in which goroutines run, or Raft's own
// random numbers. A goroutine must never sleep while it holds a lock, because the virtual time of the bubble would then
// stop.
package sim
