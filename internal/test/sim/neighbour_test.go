package sim

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Each volume with a journal also has other groups, called neighbours. Each has one copy, and shares the journal and
// the committer with the simulated group. After each start, all writes that the neighbours have acknowledged must
// still exist.

const (
	neighbours     = 2 // number of neighbours on each volume
	neighbourVoter = 1 // Raft id of a neighbour's only voter
)

// neighbour is an additional group on a volume, as it runs in a process.
type neighbour struct {
	number  int
	log     *group.Log
	replica *replica.Replica
}

// keptWrites holds the acknowledged writes of the neighbours: for each neighbour and index, the hash of the data. It
// belongs to a disk, and survives power cuts.
type keptWrites [neighbours]map[uint64]uint64

func neighbourID(number int) uuid.UUID { return uuid.UUID{4, byte(number)} }

func neighbourDir(number int) string { return path.Join(volumeDir, fmt.Sprint("n", number)) }

// dirOf returns the folder of a group on a volume.
func dirOf(id uuid.UUID) string {
	for i := range neighbours {
		if id == neighbourID(i) {
			return neighbourDir(i)
		}
	}
	return groupDir
}

// groupsOn returns the groups that may have data in the journal.
func groupsOn(disk vfs.FS) (ids []uuid.UUID, err error) {
	ids = append(ids, identity.Group)
	for i := range neighbours {
		_, err := disk.Stat(neighbourDir(i))
		switch {
		case err == nil:
			ids = append(ids, neighbourID(i))
		case !errors.Is(err, iofs.ErrNotExist):
			return nil, err
		}
	}
	return ids, nil
}

// startNeighbours opens the neighbours on a disk, and creates those that are missing. It returns false after an error.
func (p *process) startNeighbours() bool {
	if p.journal == nil {
		return true
	}
	for i := range neighbours {
		if err := p.startNeighbour(i); err != nil {
			if !p.disk.Crashed() {
				p.machine.world.violate(oracleDisk, "%v: neighbour %d: %v", p.machine, i, err)
			}
			return false
		}
	}
	return true
}

func (p *process) startNeighbour(number int) error {
	m := p.machine
	opts := m.options(p.faulty)
	opts.Dir, opts.Journal = neighbourDir(number), p.journal
	opts.Identity = format.Identity{Store: identity.Store, Group: neighbourID(number), Name: fmt.Sprint("n", number)}
	_, err := p.disk.Stat(path.Join(opts.Dir, format.ManifestName))
	if errors.Is(err, iofs.ErrNotExist) {
		err = group.Create(opts, &raftpb.ConfState{Voters: []uint64{neighbourVoter}})
	}
	if err != nil {
		return err
	}
	log, report, err := group.Load(context.Background(), opts, nil)
	if (err != nil || report.Outcome == group.Damaged) && m.world.mayHaveRot(m) { // the damage was reported, as it must be
		m.forget(number)
		if err == nil {
			err = log.Close(false)
		} else {
			err = nil
		}
		return err
	}
	if err != nil {
		return err
	}
	n := &neighbour{number: number, log: log}
	p.neighbours = append(p.neighbours, n)
	if report.Outcome == group.Damaged {
		return fmt.Errorf("damaged: %+v", report)
	}
	n.replica, err = replica.Start(replica.Options{
		Log: log, Committer: p.committer, RaftID: neighbourVoter, Now: m.now,
		Probe: &replica.Probe{BeforeSync: p.beforeSync, Shared: true},
	})
	if err == nil {
		n.check(p) // a group with one voter has applied everything by now
	}
	return err
}

// forget discards the record of a neighbour's acknowledged writes.
func (m *machine) forget(number int) {
	m.world.mu.Lock()
	defer m.world.mu.Unlock()
	m.kept[number] = nil
}

// check checks that the log holds every acknowledged write.
func (n *neighbour) check(p *process) {
	m, want := p.machine, map[uint64]uint64{}
	m.world.mu.Lock()
	if m.disk == p.disk {
		maps.Copy(want, m.kept[n.number])
	}
	m.world.mu.Unlock()
	for index, data := range want {
		got, err := n.log.ReadRange(group.IndexRange{First: index, Last: index}, 64<<10)
		if err == nil && len(got.Entries) == 0 {
			err = errors.New("it is not there")
		}
		if err == nil {
			var e format.Entry
			if e, err = format.DecodePayload(got.Entries[0]); err == nil && hash(e.Data) != data {
				err = errors.New("it is another one")
			}
		}
		if err != nil && !p.disk.Crashed() {
			m.world.violate(oracleKept, "%v: entry %d of neighbour %d: %v", m, index, n.number, err)
			return
		}
	}
	if len(want) > 0 {
		m.world.fire("neighbour has what it was promised")
	}
}

// writeNeighbour writes to a neighbour until the process is stopped.
func (p *process) writeNeighbour(n *neighbour) {
	m, w := p.machine, p.machine.world
	r := rand.New(rand.NewPCG(w.seed, 1000+uint64(10*m.number+n.number)))
	for count := 0; w.sleep(between(r, time.Millisecond, 2*w.cfg.pause)); count++ {
		w.mu.Lock()
		over := p.dead || w.stopping
		w.mu.Unlock()
		if over {
			return
		}
		data := []byte(fmt.Sprintf("neighbour %d of process %x of machine %d, %d:%s", n.number, p.epoch, m.number, count,
			strings.Repeat("x", r.IntN(600))))
		result, err := n.replica.Propose(replica.Write{ID: r.Int64N(50), Data: data}).Wait(w.ctx)
		if err != nil {
			continue
		}
		w.mu.Lock()
		if m.process == p && m.disk == p.disk {
			if m.kept[n.number] == nil {
				m.kept[n.number] = map[uint64]uint64{}
			}
			m.kept[n.number][result.Index] = hash(data)
			w.fired["write of a neighbour"]++
		}
		w.mu.Unlock()
	}
}

// closeNeighbours closes the logs after the committer has stopped.
func (p *process) closeNeighbours() {
	for _, n := range p.neighbours {
		if err := n.log.Close(p.orderly); err != nil && !p.disk.Crashed() && !p.writesFailed.Load() {
			p.machine.world.violate(oracleDisk, "%v: close neighbour %d: %v", p.machine, n.number, err)
		}
	}
}
