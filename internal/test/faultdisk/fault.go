package faultdisk

import (
	"slices"
	"syscall"
)

// Calls is a set of kinds of disk calls.
type Calls uint8

// These are the kinds of calls.
const (
	Reads Calls = 1 << iota
	Writes
	Flushes
)

// Fault affects calls that touch a range of the disk: it makes them fail or wait. Its fields must not be changed
// after the fault is added.
type Fault struct {
	Calls         Calls
	Offset, Bytes int64         // range of the disk; if Bytes is 0, the whole disk
	Err           syscall.Errno // error that the calls return; if it is 0, they wait until the fault is removed
	Times         int           // the fault ends after this many calls; 0 means that it remains until it is removed

	device *Device
	fired  int // guarded by the device's mu
}

// Add adds a fault. It takes effect from the next call on.
func (d *Device) Add(f *Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f.device = d
	d.faults = append(d.faults, f)
}

// Remove ends a fault that was added. A second call does nothing.
func (f *Fault) Remove() {
	f.device.mu.Lock()
	defer f.device.mu.Unlock()
	f.device.remove(f)
}

// Fired returns the number of calls that the fault has affected.
func (f *Fault) Fired() int {
	f.device.mu.Lock()
	defer f.device.mu.Unlock()
	return f.fired
}

func (d *Device) remove(f *Fault) {
	d.faults = slices.DeleteFunc(d.faults, func(other *Fault) bool { return other == f })
	d.eased.Broadcast()
}

func (f *Fault) concerns(calls Calls, offset, bytes int64) bool {
	return f.Calls&calls != 0 && (f.Bytes == 0 || offset < f.Offset+f.Bytes && f.Offset < offset+bytes)
}

// applyFaults makes the calling operation wait or fail if a fault applies to it. It also returns an error if the range
// is not inside the disk. The caller holds mu.
func (d *Device) applyFaults(calls Calls, offset, bytes int64) error {
	if err := d.inside(offset, bytes); err != nil {
		return err
	}
	met := map[*Fault]bool{}
	for {
		i := slices.IndexFunc(d.faults, func(f *Fault) bool { return f.concerns(calls, offset, bytes) })
		if i < 0 {
			return nil
		}
		f := d.faults[i]
		if !met[f] {
			met[f] = true
			f.fired++
			if f.Times > 0 && f.fired == f.Times {
				d.remove(f)
			}
		}
		if f.Err != 0 {
			return f.Err
		}
		if slices.Contains(d.faults, f) {
			d.eased.Wait()
		}
	}
}
