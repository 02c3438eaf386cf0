// Package placementtest has tests that every registry of shards must pass: the registry in etcd, and the registries
// that replace it in tests.
package placementtest

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// Registry checks whether a shard may serve a volume, and then registers the shard. See registry.Store.
type Registry interface {
	MayRegister(ctx context.Context, s placement.Shard) (registered placement.Step, err error)
	RegisterShard(ctx context.Context, s placement.Shard, refused ...func(error)) (stop func(), err error)
	NextStep(ctx context.Context, s placement.Shard) error
}

// Disk holds the data that a volume stores about itself. A copy of a Disk is an image of the disk.
type Disk struct {
	Volume     uuid.UUID
	Generation uint64
	Step       placement.Step
	Registered placement.Step // newest step that the volume knows to be registered
}

// NewDisk returns a disk that no shard has used.
func NewDisk() Disk { return Disk{Volume: uuid.New()} }

// Open changes the disk as the start of a shard would. The given step is the one that etcd has stored, and the disk
// records this.
func (d *Disk) Open(registered placement.Step) {
	d.Generation++
	d.next(registered)
}

func (d *Disk) next(registered placement.Step) {
	d.Step = placement.Step{Number: d.Step.Number + 1, Nonce: uuid.New()}
	d.Registered = registered
}

// Process is the process of a shard that uses a disk.
type Process struct {
	registry Registry
	disk     *Disk
	shard    placement.Shard
	stop     func()
}

// shardOn returns a shard on the disk in its current state.
func (d *Disk) shardOn(name, address string) placement.Shard {
	return placement.Shard{
		Name: name, Address: address, Boot: uuid.New(), VolumeUUID: d.Volume, Generation: d.Generation, Step: d.Step,
		Registered: d.Registered,
	}
}

// Start follows the steps of a shard's start: it queries the registry, opens the volume, and registers the shard.
func Start(ctx context.Context, registry Registry, d *Disk, name, address string) (*Process, error) {
	asking := d.shardOn(name, address)
	asking.Generation++
	registered, err := registry.MayRegister(ctx, asking)
	if err != nil {
		return nil, err
	}
	d.Open(registered)
	p := &Process{registry: registry, disk: d, shard: d.shardOn(name, address)}
	p.stop, err = registry.RegisterShard(ctx, p.shard)
	return p, err
}

// Write makes the volume's next step, as a shard does every few seconds while it writes data.
func (p *Process) Write(ctx context.Context) error {
	p.disk.next(p.shard.Step)
	p.shard.Step, p.shard.Registered = p.disk.Step, p.disk.Registered
	return p.registry.NextStep(ctx, p.shard)
}

// Again registers the process once more, as a shard does after its lease has expired.
func (p *Process) Again(ctx context.Context) error {
	p.stop()
	var err error
	p.stop, err = p.registry.RegisterShard(ctx, p.shard)
	return err
}

// run tests a registry in one case.
type run struct {
	*testing.T
	registry Registry
	disk     Disk
}

const (
	here      = "127.0.0.1:1" // nothing listens at this address
	elsewhere = "127.0.0.1:2"
)

// start starts a shard. It fails the test unless the start fails with the wanted error. If no error is wanted, the
// start must succeed.
func (r *run) start(d *Disk, name, address string, want error) *Process {
	r.Helper()
	p, err := Start(r.Context(), r.registry, d, name, address)
	if !errors.Is(err, want) {
		r.Fatalf("shard %s at %s starts on %+v: error %v, want %v", name, address, *d, err, want)
	}
	return p
}

// restart makes a shard start once more on the disk: it starts a process, and stops it.
func (r *run) restart() {
	r.Helper()
	r.start(&r.disk, "a", here, nil).stop()
}

func (r *run) write(p *Process, want error) {
	r.Helper()
	if err := p.Write(r.Context()); !errors.Is(err, want) {
		r.Fatalf("the next step of %+v: error %v, want %v", *p.disk, err, want)
	}
}

var cases = []struct {
	name string
	run  func(r *run)
}{
	{"a disk starts again and again", func(r *run) {
		for range 3 {
			r.restart()
			p := r.start(&r.disk, "a", elsewhere, nil)
			r.write(p, nil)
			r.write(p, nil)
			p.stop()
		}
	}},
	{"a backup from before the last start", func(r *run) {
		r.restart()
		backup := r.disk
		r.restart()
		r.start(&backup, "a", here, placement.ErrRolledBack)
	}},
	{"a backup from before the last three starts", func(r *run) {
		r.restart()
		backup := r.disk
		r.restart()
		r.restart()
		r.restart()
		r.start(&backup, "a", here, placement.ErrRolledBack)
		r.start(&backup, "a", elsewhere, placement.ErrRolledBack)
		r.restart()
	}},
	{"an image of a running disk", func(r *run) {
		p := r.start(&r.disk, "a", here, nil)
		image := r.disk
		r.write(p, nil)
		p.stop()
		r.start(&image, "a", here, placement.ErrRolledBack)
		r.restart()
	}},
	{"an image of a running disk, of several runs", func(r *run) {
		p := r.start(&r.disk, "a", here, nil)
		r.write(p, nil)
		p.stop()
		p = r.start(&r.disk, "a", here, nil)
		r.write(p, nil)
		image := r.disk
		r.write(p, nil)
		r.write(p, nil)
		p.stop()
		for range 3 {
			r.start(&image, "a", here, placement.ErrRolledBack)
		}
	}},
	{"an image of the last step is not distinguished from the disk", func(r *run) {
		p := r.start(&r.disk, "a", here, nil)
		r.write(p, nil)
		image := r.disk
		p.stop()
		r.start(&image, "a", here, nil).stop()
		r.start(&r.disk, "a", here, placement.ErrRolledBack)
	}},
	{"killed between a step on the disk and in etcd", func(r *run) {
		p := r.start(&r.disk, "a", here, nil)
		r.write(p, nil)
		r.disk.next(p.shard.Step)
		p.stop()
		r.restart()
	}},
	{"killed again and again before it is registered", func(r *run) {
		r.restart()
		for range 3 {
			asking := r.disk.shardOn("a", here)
			asking.Generation++
			registered, err := r.registry.MayRegister(r.Context(), asking)
			must.OK(r, err)
			r.disk.Open(registered)
		}
		r.restart()
	}},
	{"a copy that went on by itself", func(r *run) {
		r.restart()
		backup := r.disk
		for range 5 { // starts the copy five times, without registering the new steps
			backup.Open(backup.Registered)
		}
		r.restart()
		r.start(&backup, "a", here, placement.ErrRolledBack)
		r.restart()
	}},
	{"a copy in a step of the same number", func(r *run) {
		p := r.start(&r.disk, "a", here, nil)
		backup := r.disk
		r.write(p, nil)
		p.stop()
		backup.Open(backup.Step)
		r.start(&backup, "a", here, placement.ErrRolledBack)
	}},
	{"another process in the same generation", func(r *run) {
		p := r.start(&r.disk, "a", here, nil)
		twin := p.shard
		twin.Boot = uuid.New()
		if _, err := r.registry.RegisterShard(r.Context(), twin); !errors.Is(err, placement.ErrNameTaken) {
			r.Errorf("while the first one is live: %v", err)
		}
		p.stop()
		if _, err := r.registry.RegisterShard(r.Context(), twin); !errors.Is(err, placement.ErrRolledBack) {
			r.Errorf("after the first one: %v", err)
		}
	}},
	{"the same process again", func(r *run) {
		p := r.start(&r.disk, "a", here, nil)
		r.write(p, nil)
		p.stop()
		stop, err := r.registry.RegisterShard(r.Context(), p.shard)
		must.OK(r, err)
		r.write(p, nil)
		stop()
		r.restart()
	}},
	{"a process in whose place another one is", func(r *run) {
		p := r.start(&r.disk, "a", here, nil)
		copied := r.disk
		p.stop()
		other := r.start(&copied, "a", elsewhere, nil)
		r.write(p, placement.ErrRolledBack)
		r.write(other, nil)
		other.stop()
	}},
	{"a volume of a program that knows no steps", func(r *run) {
		r.disk.Generation = 7
		p := r.disk.shardOn("a", here)
		stop, err := r.registry.RegisterShard(r.Context(), p)
		must.OK(r, err)
		stop()
		before := r.disk
		earlier := r.disk
		earlier.Generation = 6
		r.start(&earlier, "a", here, placement.ErrRolledBack)
		r.restart()
		r.restart()
		before.Generation = 20
		r.start(&before, "a", here, placement.ErrRolledBack) // a copy of the disk from the time before it had steps
	}},
	{"another volume under the name of a live shard", func(r *run) {
		p := r.start(&r.disk, "a", here, nil)
		other := NewDisk()
		r.start(&other, "a", elsewhere, placement.ErrNameTaken)
		p.stop()
		r.start(&other, "a", elsewhere, nil).stop()
	}},
	{"the volume of a live shard under another name", func(r *run) {
		p := r.start(&r.disk, "a", here, nil)
		copied := r.disk
		r.start(&copied, "b", here, placement.ErrNameTaken)
		p.stop()
		r.start(&copied, "b", here, nil).stop()
		r.start(&r.disk, "a", here, placement.ErrRolledBack)
	}},
}

// Register runs all cases. Each case has its own registry.
func Register(t *testing.T, registry func(t *testing.T) Registry) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.run(&run{T: t, registry: registry(t), disk: NewDisk()})
		})
	}
}
