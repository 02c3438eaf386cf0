package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// syncAllDirtyMax is the most unwritten memory, of all programs on this machine, for which OS.SyncAll is worthwhile:
// a sync of a whole file system also waits for other programs' files on it.
const syncAllDirtyMax = 128 << 20

// SyncAll implements FS by syncfs.
func (OS) SyncAll(dir string) error {
	unsupported := func(why string) error {
		return &fs.PathError{Op: "syncall", Path: dir, Err: fmt.Errorf("%w: %s", errors.ErrUnsupported, why)}
	}
	if !syncfsReportsErrors() {
		return unsupported("syncfs of this kernel does not tell errors of the device")
	}
	if dirty, err := dirtyBytes(); err != nil || dirty > syncAllDirtyMax {
		return unsupported(fmt.Sprintf("%d bytes of memory are not written yet: %v", dirty, err))
	}
	return syncFolder("syncall", dir, unix.Syncfs)
}

// syncfsReportsErrors reports whether syncfs returns errors of earlier writes, as it does since Linux 5.8.
var syncfsReportsErrors = sync.OnceValue(func() bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var major, minor int
	n, _ := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return n == 2 && (major > 5 || major == 5 && minor >= 8)
})

// dirtyBytes returns how much memory of this machine, in bytes, waits to be written or is being written.
func dirtyBytes() (bytes int64, err error) {
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	found := 0
	for line := range strings.Lines(string(content)) {
		var kib int64
		name, value, _ := strings.Cut(line, ":")
		if name != "Dirty" && name != "Writeback" {
			continue
		}
		if _, err := fmt.Sscanf(value, "%d kB", &kib); err != nil {
			return 0, fmt.Errorf("/proc/meminfo: %q: %w", strings.TrimSpace(line), err)
		}
		bytes, found = bytes+kib<<10, found+1
	}
	if found != 2 {
		return 0, errors.New("/proc/meminfo does not tell what is dirty")
	}
	return bytes, nil
}
