package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
)

// healTime is the maximum time that a group may need, after all faults are healed, for elections, installs and other
// pending work.
const healTime = 3 * time.Minute

// heal ends the faults and waits for the clients.
func (w *world) heal() {
	r := rand.New(rand.NewPCG(w.seed, 4))
	w.mu.Lock()
	clear(w.partitioned)
	w.bad, w.etcdSilent = false, time.Time{}
	w.stopping = true
	for _, m := range w.machines {
		m.slow = 0
		m.disk.CrashAfter(-1)
	}
	w.mu.Unlock()
	w.awaitTrue("every machine is up, and every call answered", func() bool {
		w.startAll(r)
		return w.calling.Load() == 0
	})
}

// startAll starts every machine that is down. This includes machines that have crashed after the healing, because the
// crash had been scheduled earlier.
func (w *world) startAll(r *rand.Rand) {
	for _, m := range w.machines {
		w.mu.Lock()
		disk, down := m.disk, m.process == nil
		w.mu.Unlock()
		switch {
		case disk.Crashed():
			m.cutPower(survival(r))
		case down:
			m.start()
		}
	}
}

// awaitTrue waits until is() returns true, but for at most healTime. After that time, it records a violation and
// returns false.
func (w *world) awaitTrue(what string, is func() bool) bool {
	for end := time.Now().Add(healTime); time.Now().Before(end); {
		if w.ctx.Err() != nil {
			return false
		}
		if is() {
			return true
		}
		w.sleep(20 * time.Millisecond)
	}
	w.violate(oracleEnd, "not within %v of healing: %s\n%s", healTime, what, w.describe())
	return false
}

// converge waits until all members have applied everything, reads every record through each of them, and compares the
// logs.
func (w *world) converge() {
	var last uint64
	r := rand.New(rand.NewPCG(w.seed, 5))
	ok := w.awaitTrue("a leader, and all members with all entries", func() bool {
		w.startAll(r)
		leader := w.leader()
		if leader == nil {
			return false
		}
		m := leader.replica.Members()
		if m.Changing || len(m.Conf.GetVoters()) < w.cfg.copies || len(m.Conf.GetLearners()) > 0 {
			return false
		}
		last = m.LastIndex
		w.members = map[uint64]bool{}
		for _, member := range m.Progress {
			w.members[member.ID] = true
		}
		up := 0
		for _, p := range w.processes() {
			for _, member := range m.Progress {
				if member.ID == p.raftID && p.log.AppliedIndex() == last && w.isRepaired(p) {
					up++
				}
			}
		}
		return up == len(m.Progress)
	})
	if !ok {
		return
	}
	w.compare(last)
	w.compareViews()
}

// compare reads every record through every member. The result of each read must match the newest entry for the record.
func (w *world) compare(last uint64) {
	for _, p := range w.processes() {
		if p.log.AppliedIndex() != last || !w.members[p.raftID] {
			continue // the process was removed from the group
		}
		w.compareLog(p, last)
		for id := range w.cfg.keys {
			op := operation{client: w.cfg.clients, call: call{what: "get", id: id}, begin: callSequence.Add(1)}
			ctx, cancel := context.WithTimeout(w.ctx, healTime)
			if w.read(ctx, p, &op) {
				w.remember(op)
			}
			cancel()
		}
		for id, want := range w.ledger.newest() {
			index, deleted, err := p.log.Head(id)
			if errors.Is(err, format.ErrClosed) {
				break // the member has since been replaced by another incarnation
			}
			gone := errors.Is(err, group.ErrNotFound) && want.kind == format.KindDelete // the tombstone was dropped
			if !gone && (err != nil || index != want.index || deleted != (want.kind == format.KindDelete)) {
				w.violate(oracleKept, "%v: record %d at index %d: %d, deleted %v, %v; the newest entry is %+v", p.machine, id, last,
					index, deleted, err, want)
			}
		}
	}
}

// isRepaired reports whether nothing in a process's replica is left to be repaired.
func (w *world) isRepaired(p *process) bool {
	return !p.log.Damaged() && (!w.isRotten(p.machine) || w.scrub(p))
}

// compareLog compares every entry in the log of a replica with the entry that was first applied at the same index by
// any replica.
func (w *world) compareLog(p *process, last uint64) {
	for next := uint64(1); next <= last; {
		got, err := p.log.ReadRange(group.IndexRange{First: next, Last: last}, 64<<10)
		if errors.Is(err, format.ErrClosed) {
			return
		}
		if err != nil || got.Through < next {
			w.violate(oracleDisk, "%v: entries from index %d: through %d, %v", p.machine, next, got.Through, err)
			return
		}
		for _, r := range got.Entries {
			e, err := format.DecodePayload(r)
			if problem := w.ledger.checkEntry(&e); err != nil || problem != "" {
				w.violate(oracleAgree, "%v: index %d of its log: %v %s", p.machine, r.GetIndex(), err, problem)
				return
			}
		}
		next = got.Through + 1
	}
}

// verifyDisks checks every byte on the disks, including the used flags.
func (w *world) verifyDisks() {
	for _, m := range w.machines {
		file, found, err := format.ReadReplicaFile(m.disk, groupDir)
		if err != nil || !found || file.Joining || file.Volume != m.volume {
			continue
		}
		if len(m.rots) > 0 && !w.members[m.raftID] {
			continue // the member was removed from the group, so its damage is not repaired
		}
		report, err := fsck.VerifyDir(context.Background(), m.disk, groupDir, nil)
		if err != nil || len(report.Damages) > 0 {
			w.violate(oracleDisk, "%v: verify: %v, %v\n%s", m, err, report.Damages, w.dump(m, report.Damages))
		}
	}
}

// dump returns the content of the manifest and of each damaged file as text. This text is the only evidence of a
// violation, because a run cannot be repeated exactly.
func (w *world) dump(m *machine, damages []format.Damage) string {
	names := []string{format.ManifestName, format.MarkName}
	for _, d := range damages {
		if d.File != "" && !slices.Contains(names, d.File) {
			names = append(names, d.File)
		}
	}
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "%s:\n", name)
		if err := fsck.Dump(&b, m.disk, path.Join(groupDir, name)); err != nil {
			fmt.Fprintln(&b, err)
		}
	}
	return b.String()
}

// describe returns a text with the state of all machines and processes.
func (w *world) describe() string {
	var b strings.Builder
	w.mu.Lock()
	for _, m := range w.machines {
		file, found, err := format.ReadReplicaFile(m.disk, groupDir)
		fmt.Fprintf(&b, "%v: wanted %x, running %v, folder %x %v joining %v %v, crashed %v\n",
			m, m.raftID, m.process != nil, file.RaftID, found, file.Joining, err, m.disk.Crashed())
	}
	w.mu.Unlock()
	for _, p := range w.processes() {
		fmt.Fprintf(&b, "%v: %x %+v %+v\n", p.machine, p.raftID, p.replica.Status(), p.replica.Members())
	}
	return b.String()
}
