package vfs

import "unsafe"

// AlignedBytes returns a slice of n bytes in memory aligned to DirectAlign, as reads from OpenDirect require.
func AlignedBytes(n int) []byte {
	if n <= 0 {
		return nil
	}
	buf := make([]byte, n+DirectAlign)
	skip := int(-uintptr(unsafe.Pointer(&buf[0])) % DirectAlign)
	return buf[skip : skip+n : skip+n]
}
