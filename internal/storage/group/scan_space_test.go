package group

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestAGroupHasOnlySoManySnapshots checks that the number of snapshots of a group is bounded. At the limit, the least
// recently used one is given up, unless it is being read.
func TestAGroupHasOnlySoManySnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 16<<10))
		open := func() ScanID {
			t.Helper()
			time.Sleep(time.Second) // makes the snapshots' times of last use differ
			id, err := d.log.OpenScan(time.Hour)
			ok(t, err)
			return id
		}
		read, used, idle := open(), open(), open()
		ok(t, d.log.EnterScan(read))
		for n := range snapshotsMax {
			if n == snapshotsMax/2 {
				_, err := d.log.ScanInfo(used)
				ok(t, err)
			}
			open()
		}
		if n := len(d.log.state.snapshots); n != snapshotsMax {
			t.Errorf("%d snapshots are open", n)
		}
		if _, err := d.log.ScanInfo(idle); !errors.Is(err, ErrCursorExpired) {
			t.Errorf("one that nobody used: %v", err)
		}
		for name, id := range map[string]ScanID{"one that is read": read, "one that was used": used} {
			if _, err := d.log.ScanInfo(id); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		d.log.LeaveScan(read)
	})
}

// TestSnapshotsOfAGroupHoldOnlySoManyPlaces checks that the total number of locations that a group's snapshots hold is
// bounded. Beyond the bound, a snapshot is given up. Each snapshot holds a location for each record that is overwritten
// after the snapshot was taken.
func TestSnapshotsOfAGroupHoldOnlySoManyPlaces(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 16<<10))
	d.log.state.placesMax = 10
	write := func() {
		d.fill(3, 10, payload)
	}
	write()
	for range 4 {
		_, err := d.log.OpenScan(time.Hour)
		ok(t, err)
	}
	// The second round overwrites versions that no snapshot sees, so it must not add any locations.
	for range 2 {
		write()
		if st := d.log.Stats(); st.ScanPlaces != 9 || st.Scans != 3 {
			t.Errorf("%d snapshots hold %d places", st.Scans, st.ScanPlaces)
		}
	}
}
