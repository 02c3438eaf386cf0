package grouptest

import (
	"syscall"
	"testing"
	"unsafe"
)

// TouchedBytes returns how many bytes of a mapping occupy memory. It looks at the whole capacity of the slice, not
// only at its length.
func TouchedBytes(t *testing.T, mapping []byte) (touched int64) {
	t.Helper()
	all := mapping[:cap(mapping)]
	if len(all) == 0 {
		return 0
	}
	pages := make([]byte, (len(all)+4095)/4096)
	if _, _, errno := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(&all[0])), uintptr(len(all)),
		uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for _, p := range pages {
		touched += int64(p&1) * 4096
	}
	return touched
}
