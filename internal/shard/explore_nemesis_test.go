package shard

import (
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// misfortune is a kind of fault. The function run causes the fault, and reports whether it has actually occurred.
// When run returns, all shards are running again.
type misfortune struct {
	name string
	run  func(x *exploration) bool
}

var misfortunes = []misfortune{
	{"group moved", func(x *exploration) bool {
		x.aim(placement.GroupName(x.dice(exploreGroups)), nil, nil)
		return true
	}},
	{"killed as it begins", (*exploration).killedAsItBegins},
	{"killed as it joins", func(x *exploration) bool { return x.killedAsItJoins(joining) }},
	{"killed as it leaves", (*exploration).killedAsItLeaves},
	{"killed", func(x *exploration) bool {
		m := x.anyMachine()
		return x.killed(m, anything, func() {})
	}},
	{"killed while etcd is away", (*exploration).killedWithoutEtcd},
	{"stopped in order", func(x *exploration) bool {
		m := x.anyMachine()
		m.stop()
		x.pause(time.Second)
		m.start(vfstest.Survival{})
		return true
	}},
	{"stopped while it cannot begin", (*exploration).stoppedWhileItCannotBegin},
	{"cannot begin for a while", (*exploration).cannotBegin},
	{"slow disk", (*exploration).slowDisk},
	{"room of a disk unknown", (*exploration).spaceUnknown},
	{"killed when its disk has failed", (*exploration).killedWhenItsDiskHasFailed},
}

// step causes one misfortune at random. If names is not empty, it chooses only from the misfortunes with these names.
func (x *exploration) step(n int, names []string) {
	some := misfortunes
	if len(names) > 0 {
		some = slices.DeleteFunc(slices.Clone(some), func(m misfortune) bool { return !slices.Contains(names, m.name) })
	}
	m := some[x.dice(len(some))]
	x.event("step %d: %s", n, m.name)
	if m.run(x) {
		x.fire(m.name)
	}
	x.pause(400 * time.Millisecond)
}

// killed makes a machine die at some operation of a stage. The function begins is expected to bring about this stage.
// killed then restarts the machine on the disk that has survived. During the restart, the machine may die a second
// time.
func (x *exploration) killed(m *machine, s stage, begins func()) bool {
	how := x.survival()
	hit := m.arm(s, 1+x.dice(s.most))
	if x.dice(2) == 0 {
		m.slow(time.Duration(1+x.dice(30)) * time.Millisecond)
	}
	begins()
	select {
	case <-hit:
	case <-time.After(3 * time.Second):
	}
	m.disarm()
	select {
	case <-hit:
	default:
		m.faulty.Clear()
		return false
	}
	m.die(how)
	x.pause(time.Second)
	disk, again := m.disk, make(chan struct{})
	if x.dice(3) == 0 {
		again = m.arm(anything, 1+x.dice(s.most))
	}
	m.start(how)
	m.disarm()
	select {
	case <-again:
		if m.disk == disk { // the machine has not been restarted after its second death yet
			m.die(how)
			m.start(how)
		}
	default:
	}
	return true
}

// killedAsItBegins assigns a group to a shard, and kills the shard while it creates its replica of the group.
func (x *exploration) killedAsItBegins() bool { return x.killedAsItJoins(beginning) }

func (x *exploration) killedAsItJoins(s stage) bool {
	m := x.anyMachine()
	name := x.some(m, false)
	return name != "" && x.killed(m, s, func() { x.aim(name, m, nil) })
}

// killedAsItLeaves moves a group away from a shard, and kills the shard during the move. Sometimes the group has only
// just been assigned to the shard.
func (x *exploration) killedAsItLeaves() bool {
	m := x.anyMachine()
	name := x.some(m, x.dice(3) > 0)
	if name == "" {
		return false
	}
	if !x.isOn(m, x.registry.now().Groups[name]) {
		x.aim(name, m, nil)
		x.pause(300 * time.Millisecond)
	}
	return x.killed(m, leaving, func() { x.aim(name, nil, m) })
}

func (x *exploration) killedWithoutEtcd() bool {
	x.registry.setDown(true)
	x.aim(placement.GroupName(x.dice(exploreGroups)), nil, nil)
	x.pause(500 * time.Millisecond)
	m, how := x.anyMachine(), x.survival()
	m.die(how)
	x.pause(500 * time.Millisecond)
	x.registry.setDown(false)
	m.start(how)
	return true
}

// unbegun adds a fault that makes the first steps of creating a replica fail.
func (x *exploration) unbegun(before func(op vfstest.Op)) *vfstest.Fault {
	return &vfstest.Fault{
		Match:  func(op vfstest.Op) bool { return op.Kind.Mutates() && beginning.match(op) },
		Err:    []error{syscall.ENOSPC, syscall.EIO}[x.dice(2)],
		Before: before,
	}
}

// stoppedWhileItCannotBegin stops a shard while its disk refuses to store a new replica.
func (x *exploration) stoppedWhileItCannotBegin() bool {
	m := x.anyMachine()
	name := x.some(m, false)
	if name == "" {
		return false
	}
	s, _ := m.running()
	hit := make(chan struct{})
	var once sync.Once
	fault := m.faulty.Add(x.unbegun(func(vfstest.Op) {
		once.Do(func() { close(hit) })
		select { // the disk responds only after the shard has begun to stop
		case <-s.ctx.Done():
		case <-time.After(3 * time.Second):
		}
		time.Sleep(time.Millisecond)
	}))
	x.aim(name, m, nil)
	fired := false
	select {
	case <-hit:
		fired = true
	case <-time.After(3 * time.Second):
	}
	if x.dice(2) == 0 {
		m.stop()
	} else {
		m.end(func(s *Shard) { s.Kill() })
	}
	fault.Remove()
	m.start(vfstest.Survival{})
	return fired
}

func (x *exploration) cannotBegin() bool {
	m := x.anyMachine()
	name := x.some(m, false)
	if name == "" {
		return false
	}
	fault := m.faulty.Add(x.unbegun(nil))
	x.aim(name, m, nil)
	x.pause(2 * time.Second)
	fault.Remove()
	return fault.Fired() > 0
}

// slow makes each sync of a segment or of the journal take longer.
func (m *machine) slow(each time.Duration) *vfstest.Fault {
	return m.faulty.Add(&vfstest.Fault{
		Match: func(op vfstest.Op) bool {
			name := path.Base(op.Name)
			return op.Kind == vfstest.OpSync && (strings.HasPrefix(name, "segment-") || strings.HasPrefix(name, "journal"))
		},
		Effect: vfstest.EffectPass, Before: func(vfstest.Op) { time.Sleep(each) },
	})
}

// slowDisk makes all disks slow for a while.
func (x *exploration) slowDisk() bool {
	var all []*vfstest.Fault
	for _, m := range x.machines {
		all = append(all, m.slow(time.Duration(1+x.dice(30))*time.Millisecond))
	}
	time.Sleep(time.Second)
	fired := false
	for _, f := range all {
		f.Remove()
		fired = fired || f.Fired() > 0
	}
	return fired
}

// spaceUnknown makes a machine's file system unable to report its free space.
func (x *exploration) spaceUnknown() bool {
	fault := x.anyMachine().faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpSpace
	}, Err: syscall.EUCLEAN})
	x.pause(time.Second)
	fault.Remove()
	return fault.Fired() > 0
}

// truncate truncates a segment of a group at a random offset.
func (x *exploration) truncate(m *machine, g placement.Group) bool {
	dir := path.Join(exploreDir, "groups", g.UUID.String())
	names, err := m.disk.List(dir)
	if err != nil {
		return false
	}
	segments := slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, "segment-") })
	if len(segments) == 0 {
		return false
	}
	file, err := m.disk.OpenWrite(path.Join(dir, segments[x.dice(len(segments))]))
	if err != nil {
		return false
	}
	defer file.Close()
	size, err := file.DataEnd(0)
	if err != nil || size <= 1 {
		return false
	}
	at := int64(x.dice(int(size)))
	x.event("%s of group %s on %s is cut off at %d of %d", file.Name(), g.Name, m.name, at, size)
	return file.Truncate(at) == nil && file.Sync() == nil
}

// killedWhenItsDiskHasFailed makes a disk fail, so that it refuses all changes, and later kills the process.
func (x *exploration) killedWhenItsDiskHasFailed() bool {
	m := x.anyMachine()
	kinds := []vfstest.Effect{vfstest.EffectNone, vfstest.EffectDone, vfstest.EffectPart, vfstest.EffectDrop}
	fault := m.faulty.Add(&vfstest.Fault{
		Match:  func(op vfstest.Op) bool { return op.Kind.Mutates() },
		Err:    []error{syscall.EIO, syscall.EUCLEAN, syscall.EROFS}[x.dice(3)],
		Effect: kinds[x.dice(len(kinds))],
	})
	x.pause(2 * time.Second)
	how := x.survival()
	m.die(how)
	m.start(how)
	return fault.Fired() > 0
}
